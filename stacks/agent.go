package stacks

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpu-tenants/gpu-tenants/components"
)

// useAgent makes the project's own device plugin stand in for the cards. root is
// the project's folder.
func (p *Plan) useAgent(names names, root string) error {
	source := filepath.Join(root, "agent")
	hash, err := sourceHash(os.DirFS(source))
	if err != nil {
		return fmt.Errorf("mock: agent: its source is not in %s: %w", source, err)
	}
	p.Agent = &components.AgentImageArgs{
		Name:   names.prefix + "/mock-gpu-agent:" + hash,
		Source: source,
		Build:  filepath.Join(root, ".cache", "mock-gpu-agent"),
	}
	return nil
}

// sourceHash names the content of what the agent is built from: another name
// is another image, and nothing else is.
func sourceHash(source fs.FS) (string, error) {
	hash := sha256.New()
	files := 0
	err := fs.WalkDir(source, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, ".md") {
			return err
		}
		content, err := fs.ReadFile(source, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(hash, "%s %d\n", path, len(content))
		hash.Write(content)
		files++
		return nil
	})
	if err == nil && files == 0 {
		err = fs.ErrNotExist
	}
	return hex.EncodeToString(hash.Sum(nil))[:12], err
}
