// Package artifacts writes small manifests and charts that stand for those that
// the project takes from elsewhere: an object of each sort, so that every path
// through the program is taken and a run lasts seconds.
package artifacts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

//go:embed files
var files embed.FS

// Names are the file names by which the program looks for artifacts: those that
// the project's pins give them.
type Names struct {
	CertManager, MetalLB, Calico, Kamaji, HAMi string
}

// Write writes all of them into a folder, as the configuration key artifactsDir
// wants it.
func Write(folder string, names Names) error {
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // nothing secret
		return err
	}
	for file, name := range map[string]string{"cert-manager.yaml": names.CertManager, "metallb-native.yaml": names.MetalLB, "calico.yaml": names.Calico} {
		content, err := files.ReadFile("files/" + file)
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), content, 0o644) //nolint:gosec // nothing secret
		}
		if err != nil {
			return err
		}
	}
	charts, err := fs.Sub(files, "files/charts")
	if err != nil {
		return err
	}
	kamaji, err := fs.Sub(charts, "kamaji")
	if err != nil {
		return err
	}
	target := filepath.Join(folder, names.Kamaji)
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	if err := os.CopyFS(target, kamaji); err != nil {
		return err
	}
	archive, err := packed(charts, "hami")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, names.HAMi), archive, 0o644) //nolint:gosec // nothing secret
}

// packed is what helm package makes of a chart's folder.
func packed(charts fs.FS, chart string) ([]byte, error) {
	var archive bytes.Buffer
	compressed := gzip.NewWriter(&archive)
	writer := tar.NewWriter(compressed)
	err := fs.WalkDir(charts, chart, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(charts, file)
		if err != nil {
			return err
		}
		if err := writer.WriteHeader(&tar.Header{Name: path.Clean(file), Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err = writer.Write(content)
		return err
	})
	if err := errors.Join(err, writer.Close(), compressed.Close()); err != nil {
		return nil, fmt.Errorf("chart %s: %w", chart, err)
	}
	return archive.Bytes(), nil
}
