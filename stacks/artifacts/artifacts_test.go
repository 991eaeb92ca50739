package artifacts_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gpu-tenants/gpu-tenants/stacks/artifacts"
	"github.com/gpu-tenants/gpu-tenants/stacks/pins"
)

const content = "kind: Namespace\n"

func sum(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// source is a server with one file, and a store with an empty cache.
type source struct {
	store    artifacts.Store
	artifact pins.Artifact
	requests atomic.Int32
	warnings []string
	answer   http.HandlerFunc
}

func newSource(t *testing.T) *source {
	t.Helper()
	s := &source{answer: func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, content) }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.requests.Add(1)
		s.answer(w, r)
	}))
	t.Cleanup(server.Close)
	s.store = artifacts.Store{
		Cache: filepath.Join(t.TempDir(), "cache"), Client: server.Client(),
		Warn: func(text string) { s.warnings = append(s.warnings, text) },
	}
	s.artifact = pins.Artifact{Version: "v9.9.9", File: "thing.yaml", URL: server.URL + "/v9.9.9/thing.yaml", SHA256: sum(content)}
	return s
}

// want brings the artifact, and checks what came, how, and what the cache then
// holds.
func (s *source) want(t *testing.T, requests int32) string {
	t.Helper()
	path, err := s.store.Path(t.Context(), s.artifact)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || string(got) != content || !filepath.IsAbs(path) || filepath.Base(path) != "thing.yaml" {
		t.Errorf("%s holds %q (%v)", path, got, err)
	}
	if made := s.requests.Load(); made != requests {
		t.Errorf("%d requests were made, want %d", made, requests)
	}
	if files := filesIn(t, s.store.Cache); len(files) != 1 {
		t.Errorf("the cache holds %q", files)
	}
	return path
}

// wantError tries to bring the artifact, and checks that nothing stays of it.
func (s *source) wantError(t *testing.T, telling ...string) {
	t.Helper()
	path, err := s.store.Path(t.Context(), s.artifact)
	if err == nil || path != "" {
		t.Fatalf("it brings %q, %v", path, err)
	}
	for _, text := range telling {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
	if files := filesIn(t, s.store.Cache); len(files) != 0 {
		t.Errorf("the cache holds %q", files)
	}
}

func filesIn(t *testing.T, folder string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return files
}

func TestDownload(t *testing.T) {
	s := newSource(t)
	path := s.want(t, 1)
	if len(s.warnings) != 0 {
		t.Errorf("it warns: %q", s.warnings)
	}
	s.want(t, 1) // from the cache

	// Another version of the same file lies beside it.
	other := s.artifact
	other.Version = "v9.9.8"
	if second, err := s.store.Path(t.Context(), other); err != nil || second == path || s.requests.Load() != 2 {
		t.Errorf("another version is %s (%v), after %d requests", second, err, s.requests.Load())
	}

	if text, err := s.store.Text(t.Context(), s.artifact); err != nil || text != content {
		t.Errorf("its text is %q (%v)", text, err)
	}
}

func TestDownloadIsCheckedInTheCacheToo(t *testing.T) {
	s := newSource(t)
	path := s.want(t, 1)
	if err := os.WriteFile(path, []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.want(t, 2)

	// A pin of another content, under the same version, is brought as well.
	s.answer = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "other") }
	s.artifact.SHA256 = sum("other")
	if text, err := s.store.Text(t.Context(), s.artifact); err != nil || text != "other" {
		t.Errorf("its text is %q (%v)", text, err)
	}
}

func TestDownloadOfAnotherContent(t *testing.T) {
	s := newSource(t)
	s.artifact.SHA256 = sum("what was pinned")
	s.wantError(t, s.artifact.URL, sum(content), sum("what was pinned"), "it is not used")
	s.wantError(t, "it is not used")
	if s.requests.Load() != 2 {
		t.Errorf("%d requests were made, want 2: nothing is kept", s.requests.Load())
	}
}

// A changed cache and a changed source: what is in the cache is not used either.
func TestNothingThatDoesNotMatchIsUsed(t *testing.T) {
	s := newSource(t)
	path := s.want(t, 1)
	if err := os.WriteFile(path, []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.answer = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "changed") }
	if path, err := s.store.Path(t.Context(), s.artifact); err == nil {
		t.Errorf("it brings %s", path)
	}
}

func TestDownloadWithoutADigest(t *testing.T) {
	s := newSource(t)
	s.artifact.SHA256 = ""
	s.want(t, 1)
	s.want(t, 1)
	if len(s.warnings) != 1 || !strings.Contains(s.warnings[0], sum(content)) || !strings.Contains(s.warnings[0], s.artifact.URL) {
		t.Errorf("it warns %q, want once, with the digest %s", s.warnings, sum(content))
	}
	silent := newSource(t)
	silent.artifact.SHA256, silent.store.Warn = "", nil
	silent.want(t, 1)
}

func TestDownloadFails(t *testing.T) {
	const hint = "artifactsDir"
	for name, test := range map[string]struct {
		answer  http.HandlerFunc
		telling []string
	}{
		"not found":   {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusNotFound) }, []string{"404 Not Found", hint}},
		"forbidden":   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }, []string{"403", hint}},
		"no content":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }, []string{"204", hint}},
		"interrupted": {interrupted, []string{"EOF", hint}},
		"interrupted, of unknown length": {func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, content)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, []string{"EOF", hint}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, digest := range []string{sum(content), ""} {
				s := newSource(t)
				s.answer, s.artifact.SHA256 = test.answer, digest
				s.wantError(t, append(test.telling, s.artifact.URL)...)
				if len(s.warnings) != 0 {
					t.Errorf("it warns: %q", s.warnings)
				}
			}
		})
	}
	t.Run("nobody answers", func(t *testing.T) {
		s := newSource(t)
		server := httptest.NewServer(http.NotFoundHandler())
		server.Close()
		s.artifact.URL = server.URL + "/thing.yaml"
		s.wantError(t, s.artifact.URL, hint)
	})
	t.Run("given up", func(t *testing.T) {
		s := newSource(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if path, err := s.store.Path(ctx, s.artifact); err == nil || s.requests.Load() != 0 {
			t.Errorf("it brings %s after %d requests", path, s.requests.Load())
		}
	})
}

// interrupted promises more than it sends.
func interrupted(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	fmt.Fprint(w, content)
}

// An interrupted second download leaves what the first one brought.
func TestInterruptedDownloadLeavesTheOldFile(t *testing.T) {
	s := newSource(t)
	path := s.want(t, 1)
	s.answer = interrupted
	newer := s.artifact
	newer.SHA256 = sum("newer")
	if _, err := s.store.Path(t.Context(), newer); err == nil {
		t.Error("it brings half a file")
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		t.Errorf("the cache holds %q (%v)", got, err)
	}
	s.want(t, 2)
}

// What is in the user's folder is the user's: no request, no digest, no cache.
func TestFolder(t *testing.T) {
	s := newSource(t)
	s.store.Folder = t.TempDir()
	if err := os.WriteFile(filepath.Join(s.store.Folder, "thing.yaml"), []byte("the user's own"), 0o600); err != nil {
		t.Fatal(err)
	}
	path, err := s.store.Path(t.Context(), s.artifact)
	if err != nil || path != filepath.Join(s.store.Folder, "thing.yaml") {
		t.Errorf("it is %s (%v)", path, err)
	}
	if text, err := s.store.Text(t.Context(), s.artifact); err != nil || text != "the user's own" {
		t.Errorf("its text is %q (%v)", text, err)
	}
	if s.requests.Load() != 0 || len(filesIn(t, s.store.Cache)) != 0 {
		t.Errorf("%d requests were made, and the cache holds %q", s.requests.Load(), filesIn(t, s.store.Cache))
	}

	s.artifact.File = "other.yaml"
	s.wantError(t, "artifactsDir", "other.yaml", s.store.Folder)
	if _, err := s.store.Text(t.Context(), s.artifact); err == nil || s.requests.Load() != 0 {
		t.Errorf("what is missing in the folder is looked for elsewhere: %v, %d requests", err, s.requests.Load())
	}
}

// The artifacts' paths go to Helm, which runs elsewhere: they are absolute.
func TestFolderThatIsRelative(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.MkdirAll("mine/chart", 0o755); err != nil {
		t.Fatal(err)
	}
	path, err := artifacts.Store{Folder: "mine"}.Path(t.Context(), pins.Artifact{File: "chart", Git: "https://git.test"})
	if err != nil || !filepath.IsAbs(path) || !strings.HasSuffix(path, "/mine/chart") {
		t.Errorf("it is %q (%v)", path, err)
	}
}

// repository is a bare git repository with two charts in its first commit, and
// a second commit that takes them away.
type repository struct {
	path, commit string
}

func newRepository(t *testing.T) repository {
	t.Helper()
	for key, value := range map[string]string{
		"GIT_CONFIG_GLOBAL": os.DevNull, "GIT_CONFIG_SYSTEM": os.DevNull, "GIT_TERMINAL_PROMPT": "0",
		"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@test", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@test",
	} {
		t.Setenv(key, value)
	}
	work, bare := t.TempDir(), filepath.Join(t.TempDir(), "bare")
	git := func(arguments ...string) string {
		output, err := exec.Command("git", append([]string{"-C", work}, arguments...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v: %s", arguments, err, output)
		}
		return strings.TrimSpace(string(output))
	}
	for path, text := range map[string]string{
		"charts/kamaji/Chart.yaml": "name: kamaji\n", "charts/kamaji/templates/a.yaml": "kind: A\n",
		"charts/kamaji-etcd/Chart.yaml": "name: kamaji-etcd\n", "README.md": "not of the chart\n",
	} {
		if err := os.MkdirAll(filepath.Join(work, filepath.Dir(path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(work, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git("init", "--quiet")
	git("add", ".")
	git("commit", "--quiet", "--message", "charts")
	commit := git("rev-parse", "HEAD")
	git("rm", "--quiet", "-r", "charts")
	git("commit", "--quiet", "--message", "no charts")
	git("clone", "--quiet", "--bare", work, bare)
	git("-C", bare, "config", "uploadpack.allowAnySHA1InWant", "true") // as the big hosts have it
	return repository{bare, commit}
}

func (r repository) charts() pins.Artifacts {
	return pins.Artifacts{
		Kamaji:     pins.Artifact{Version: "v9.9.9", File: "kamaji", Git: r.path, Commit: r.commit, Path: "charts/kamaji"},
		KamajiEtcd: pins.Artifact{Version: "v9.9.9", File: "kamaji/charts/kamaji-etcd", Git: r.path, Commit: r.commit, Path: "charts/kamaji-etcd"},
	}
}

// relative lists a folder's files by their path in it.
func relative(t *testing.T, folder string) []string {
	t.Helper()
	var all []string
	for _, file := range filesIn(t, folder) {
		path, err := filepath.Rel(folder, file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, path)
	}
	slices.Sort(all)
	return all
}

func TestCommit(t *testing.T) {
	r := newRepository(t)
	store := artifacts.Store{Cache: t.TempDir()}
	chart := r.charts().Kamaji
	path, err := store.Path(t.Context(), chart)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"Chart.yaml", "templates/a.yaml"}
	if got := relative(t, path); !slices.Equal(got, want) || !filepath.IsAbs(path) || filepath.Base(path) != "kamaji" {
		t.Errorf("%s holds %q, want %q", path, got, want)
	}
	// From now on the repository is not needed.
	if err := os.RemoveAll(r.path); err != nil {
		t.Fatal(err)
	}
	if again, err := store.Path(t.Context(), chart); err != nil || again != path {
		t.Errorf("a second time it is %s (%v), want %s", again, err, path)
	}
}

func TestInterruptedCommit(t *testing.T) {
	r := newRepository(t)
	store := artifacts.Store{Cache: t.TempDir()}
	leave(t, filepath.Join(store.Cache, r.commit, "kamaji.partial"))
	path, err := store.Path(t.Context(), r.charts().Kamaji)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := relative(t, store.Cache), []string{r.commit + "/kamaji/Chart.yaml", r.commit + "/kamaji/templates/a.yaml"}; !slices.Equal(got, want) {
		t.Errorf("the cache holds %q, want %q; the chart is %s", got, want, path)
	}
}

// leave makes a folder as a run that was killed leaves it.
func leave(t *testing.T, folder string) {
	t.Helper()
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "half.yaml"), []byte("ki"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestCommitFails(t *testing.T) {
	r := newRepository(t)
	for name, change := range map[string]func(*pins.Artifact){
		"no repository": func(a *pins.Artifact) { a.Git = filepath.Join(r.path, "nowhere") },
		"no commit":     func(a *pins.Artifact) { a.Commit = strings.Repeat("0123456789", 4) },
		"no folder":     func(a *pins.Artifact) { a.Path = "charts/nothing" },
	} {
		t.Run(name, func(t *testing.T) {
			store := artifacts.Store{Cache: t.TempDir()}
			chart := r.charts().Kamaji
			change(&chart)
			path, err := store.Path(t.Context(), chart)
			if err == nil || path != "" {
				t.Fatalf("it brings %q", path)
			}
			for _, text := range []string{"git ", "artifactsDir"} {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q does not say %q", err, text)
				}
			}
			if name != "no folder" && !strings.Contains(err.Error(), chart.Git) {
				t.Errorf("%q does not name the repository %s", err, chart.Git)
			}
			if got := relative(t, store.Cache); len(got) != 0 {
				t.Errorf("the cache holds %q", got)
			}
		})
	}
}

func TestKamajiChart(t *testing.T) {
	r := newRepository(t)
	store := artifacts.Store{Cache: t.TempDir()}
	want := []string{"Chart.yaml", "charts/kamaji-etcd/Chart.yaml", "templates/a.yaml"}
	chart := func() string {
		t.Helper()
		path, err := store.KamajiChart(t.Context(), r.charts())
		if err != nil {
			t.Fatal(err)
		}
		if got := relative(t, path); !slices.Equal(got, want) {
			t.Errorf("the chart is %q, want %q", got, want)
		}
		return path
	}
	path := chart()
	if again := chart(); again != path {
		t.Errorf("a second time it is %s, want %s", again, path)
	}

	// A run that was killed while it put the one into the other.
	inside := filepath.Join(path, "charts", "kamaji-etcd")
	if err := os.RemoveAll(inside); err != nil {
		t.Fatal(err)
	}
	leave(t, inside+".partial")
	chart()

	// Without the repository all of it is in the cache.
	if err := os.RemoveAll(r.path); err != nil {
		t.Fatal(err)
	}
	chart()
}

// In the user's folder the one lies in the other already.
func TestKamajiChartInAFolder(t *testing.T) {
	store := artifacts.Store{Folder: t.TempDir(), Cache: t.TempDir()}
	all := repository{path: "https://git.test/nothing", commit: strings.Repeat("0123456789", 4)}.charts()
	chart := filepath.Join(store.Folder, "kamaji")
	if err := os.MkdirAll(chart, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := store.KamajiChart(t.Context(), all); err == nil || !strings.Contains(err.Error(), "kamaji/charts/kamaji-etcd") {
		t.Errorf("without its etcd: %v", err)
	}
	leave(t, filepath.Join(chart, "charts/kamaji-etcd"))
	if path, err := store.KamajiChart(t.Context(), all); err != nil || path != chart {
		t.Errorf("the chart is %s (%v), want %s", path, err, chart)
	}
	if got := relative(t, store.Folder); !slices.Equal(got, []string{"kamaji/charts/kamaji-etcd/half.yaml"}) {
		t.Errorf("the user's folder holds %q", got)
	}
}
