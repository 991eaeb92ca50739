// Package artifacts brings the manifests and charts that pins names: from a
// folder of the user's, from the cache, or from their addresses, checked by
// digest or named by commit.
package artifacts

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpu-tenants/gpu-tenants/stacks/pins"
)

// Store is where artifacts are taken from.
type Store struct {
	// Folder holds the artifacts by their file name. Empty: Cache is used,
	// filled from the artifacts' addresses. What is in Folder is the user's
	// own and is not checked against a digest.
	Folder string
	// Cache is a folder that this program may write.
	Cache string
	// Warn tells the user something that does not stop the work.
	Warn func(string)
	// Client for downloads; nil: one with a bound on time.
	Client *http.Client
}

// Path returns where an artifact is, after bringing it when it must be.
func (s Store) Path(ctx context.Context, artifact pins.Artifact) (string, error) {
	if s.Folder != "" {
		path, err := filepath.Abs(filepath.Join(s.Folder, artifact.File))
		if err != nil {
			return "", err
		}
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("artifactsDir: %s is not in %s: %w", artifact.File, s.Folder, err)
		}
		return path, nil
	}
	if artifact.Git != "" {
		return s.commit(ctx, artifact)
	}
	return s.download(ctx, artifact)
}

// Text returns a file artifact's content.
func (s Store) Text(ctx context.Context, artifact pins.Artifact) (string, error) {
	path, err := s.Path(ctx, artifact)
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(path)
	return string(content), err
}

// download keeps a file in the cache under its digest's watch: a file there
// that no longer matches is brought again.
func (s Store) download(ctx context.Context, artifact pins.Artifact) (string, error) {
	path, err := filepath.Abs(filepath.Join(s.Cache, artifact.Version, artifact.File))
	if err != nil {
		return "", err
	}
	if sum, err := digest(path); err == nil && (artifact.SHA256 == "" || sum == artifact.SHA256) {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	partial, err := os.CreateTemp(filepath.Dir(path), artifact.File+".*")
	if err != nil {
		return "", err
	}
	defer os.Remove(partial.Name())
	err = s.get(ctx, artifact.URL, partial)
	if err := errors.Join(err, partial.Close()); err != nil {
		return "", fmt.Errorf("%s: %w (in a closed network, put it into a folder and name that as artifactsDir)", artifact.URL, err)
	}
	sum, err := digest(partial.Name())
	switch {
	case err != nil:
		return "", err
	case artifact.SHA256 == "" && s.Warn != nil:
		s.Warn(fmt.Sprintf("%s has sha256 %s, which nobody has checked: compare it with a source you trust and write it into stacks/pins/versions.yaml", artifact.URL, sum))
	case artifact.SHA256 != "" && sum != artifact.SHA256:
		return "", fmt.Errorf("%s has sha256 %s, not the pinned %s: it was changed at its source or on the way; it is not used", artifact.URL, sum, artifact.SHA256)
	}
	return path, os.Rename(partial.Name(), path)
}

func (s Store) get(ctx context.Context, url string, to io.Writer) error {
	client := s.Client
	if client == nil {
		client = &http.Client{Timeout: 2 * time.Minute}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the server answers %s", response.Status)
	}
	_, err = io.Copy(to, response.Body)
	return err
}

// commit keeps a folder of a git commit in the cache. git checks the content
// against the commit's name.
func (s Store) commit(ctx context.Context, artifact pins.Artifact) (string, error) {
	path, err := filepath.Abs(filepath.Join(s.Cache, artifact.Commit, artifact.File))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	scratch, err := os.MkdirTemp("", "gpu-tenants-git-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	for _, arguments := range [][]string{
		{"init", "--quiet"},
		{"fetch", "--quiet", "--depth", "1", artifact.Git, artifact.Commit},
		{"checkout", "--quiet", artifact.Commit, "--", artifact.Path},
	} {
		command := exec.CommandContext(ctx, "git", append([]string{"-C", scratch}, arguments...)...)
		// From inside a git hook, these would lead to the user's repository.
		command.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, "GIT_") })
		if output, err := command.CombinedOutput(); err != nil {
			return "", fmt.Errorf("git %s: %w: %s (in a closed network, put the folder into another and name that as artifactsDir)", strings.Join(arguments, " "), err, strings.TrimSpace(string(output)))
		}
	}
	// Into the cache under another name first: half a folder is no folder.
	partial := path + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.MkdirAll(filepath.Dir(partial), 0o755)); err != nil {
		return "", err
	}
	if err := os.CopyFS(partial, os.DirFS(filepath.Join(scratch, artifact.Path))); err != nil {
		return "", err
	}
	return path, os.Rename(partial, path)
}

// KamajiChart returns the chart's folder with its etcd chart in it.
func (s Store) KamajiChart(ctx context.Context, artifacts pins.Artifacts) (string, error) {
	chart, err := s.Path(ctx, artifacts.Kamaji)
	if err != nil {
		return "", err
	}
	etcd, err := s.Path(ctx, artifacts.KamajiEtcd)
	if err != nil || s.Folder != "" {
		return chart, err
	}
	// In the cache the two lie apart, each under its commit.
	inside := filepath.Join(chart, "charts", filepath.Base(etcd))
	if _, err := os.Stat(inside); err == nil {
		return chart, nil
	}
	partial := inside + ".partial"
	if err := errors.Join(os.RemoveAll(partial), os.MkdirAll(filepath.Dir(partial), 0o755), os.CopyFS(partial, os.DirFS(etcd))); err != nil {
		return "", err
	}
	return chart, os.Rename(partial, inside)
}

func digest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
