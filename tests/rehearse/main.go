// Command rehearse runs Pulumi on the project without Docker: the engine and the
// program are real, the machine and the providers are stood in for.
//
//	rehearse [--stack NAME] [--project FOLDER] [--layer engine|clusters] up|preview|refresh|destroy|stack|...
//	rehearse [--project FOLDER] build
//
// The second form builds what the first, and the tests, need, and does no more.
// It takes the configuration of the stack from the project's folder and keeps
// everything else, state and machine, in .cache/rehearse there: a real stack of
// the same name is never touched.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"gopkg.in/yaml.v3"

	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/artifacts"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/clusters"
	"github.com/gpu-tenants/gpu-tenants/tests/rehearse/stage"
)

const standIns = `This is a rehearsal. Real: Pulumi's engine and command, the program, its shell scripts.
Stood in for, so nothing of it says how the real thing behaves:
  - Docker, kind and the node containers, with kubeadm, containerd and the kubelet in them;
  - the providers command (it really runs the scripts), docker, random and kubernetes, and Helm;
  - every API server with what runs in it: Kamaji, cert-manager, MetalLB, Calico, HAMi, the cards;
  - registries: every image is there.
Not looked at: what this host has or lacks (the preflight).
`

const realClusters = `This is a rehearsal. Real: Pulumi's engine and command, the program, its shell scripts, kubectl,
the provider kubernetes with its Helm, etcd and for each cluster an API server with its controller-manager
(all of one version, whatever a tenant asks for), MetalLB's manifest and cert-manager's definitions.
Stood in for, so nothing of it says how the real thing behaves:
  - Docker, kind and the node containers, with kubeadm, containerd, the scheduler and the kubelet: every pod runs at once;
  - the providers command (it really runs the scripts), docker and random;
  - what runs in pods: Kamaji, MetalLB, Calico, HAMi and the webhooks; small charts and manifests stand for theirs;
  - registries: every image is there.
Not looked at: what this host has or lacks (the preflight).

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "rehearse:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("rehearse", flag.ExitOnError)
	stack := flags.String("stack", "dev", "the stack whose configuration is rehearsed")
	project := flags.String("project", ".", "the project's `folder`")
	layer := flags.String("layer", "engine", "what serves the Kubernetes API: engine (a store that stands in) or clusters (real API servers, the real Kubernetes provider)")
	cpus := flags.Int("cpus", 4, "how many processors the stand-in for Docker says it has")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	if flags.NArg() == 0 {
		return errors.New("which command of pulumi? up, preview, refresh, destroy, stack ...")
	}
	repository, err := filepath.Abs(*project)
	if err != nil {
		return err
	}
	folder := filepath.Join(repository, ".cache", "rehearse")
	built, err := stage.Build(ctx, repository, filepath.Join(folder, "bin"), os.Stderr)
	if err != nil {
		return err
	}
	if flags.Arg(0) == "build" {
		return nil
	}
	config, err := configuration(repository, *stack)
	if err != nil {
		return err
	}
	options := stage.Options{Dir: filepath.Join(folder, *stack), Built: built, Stack: *stack, Agent: filepath.Join(repository, "agent"), CPUs: *cpus}
	notice := standIns
	switch *layer {
	case "engine":
	case "clusters":
		// Another machine than the engine layer's: what the one holds the other
		// does not know.
		options.Dir += "-clusters"
		notice = realClusters
		binaries, err := clusters.Build(ctx, repository, built.Pins.Pulumi["kubernetes"], os.Stderr)
		if err != nil {
			return err
		}
		if options.Clusters, err = clusters.Open(ctx, filepath.Join(options.Dir, "world"), binaries); err != nil {
			return err
		}
	default:
		return fmt.Errorf("--layer %s: it is engine or clusters", *layer)
	}
	set, err := stage.Open(options)
	if err != nil {
		return err
	}
	defer set.Close()
	fmt.Fprint(os.Stderr, notice)
	if options.Clusters != nil {
		// The published charts wait for what no stand-in does.
		config["artifactsDir"] = set.Artifacts()
		if err = artifacts.Write(set.Artifacts(), built.Pins.Names()); err == nil {
			err = clusters.Publish(ctx, built.Pins, set.Artifacts())
		}
	} else {
		err = chooseArtifacts(repository, config, built, set)
	}
	if err != nil {
		return err
	}
	config["preflight"] = "skip"
	if err := set.Configure(config); err != nil {
		return err
	}
	if locked, err := set.Unlock(); err != nil {
		return err
	} else if locked {
		fmt.Fprintln(os.Stderr, "The last rehearsal was killed; its lock on the state was removed, as `pulumi cancel` does.")
	}
	command := flags.Args()
	if slices.Contains([]string{"up", "refresh", "destroy"}, command[0]) && !slices.Contains(command, "--yes") {
		command = append(command, "--yes")
	}
	result := set.Pulumi(ctx, command, os.Stdout)
	containers, networks, _ := set.World.Inventory()
	fmt.Fprintf(os.Stderr, "\nThat was a rehearsal (%s): no container, network or cluster of this machine was made or changed.\n"+
		"The stand-in for Docker holds %d containers and %d networks. Every call in order: %s\n",
		result.Took.Round(100_000_000), len(containers), len(networks), filepath.Join(set.WorldDir(), "calls.jsonl"))
	if gaps := set.World.Unknown(); len(gaps) > 0 {
		result.Err = errors.Join(result.Err, fmt.Errorf("the stand-ins were asked for what they do not know: %q", gaps))
	}
	return result.Err
}

// configuration reads the stack's configuration of the project. A stack without
// a file has none.
func configuration(repository, stack string) (map[string]any, error) {
	config := map[string]any{}
	text, err := os.ReadFile(filepath.Join(repository, "Pulumi."+stack+".yaml"))
	if errors.Is(err, os.ErrNotExist) {
		return config, nil
	}
	if err != nil {
		return nil, err
	}
	var file struct {
		Config map[string]any `yaml:"config"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("Pulumi.%s.yaml: %w", stack, err)
	}
	const prefix = "gpu-tenants:"
	for key, value := range file.Config {
		if len(key) <= len(prefix) || key[:len(prefix)] != prefix {
			continue
		}
		if fields, ok := value.(map[string]any); ok && fields["secure"] != nil {
			return nil, fmt.Errorf("Pulumi.%s.yaml: %s is encrypted with a passphrase that a rehearsal does not have; no key of this project needs that", stack, key)
		}
		config[key[len(prefix):]] = value
	}
	return config, nil
}

// chooseArtifacts takes the charts and manifests that the configuration names,
// or those in the project's cache, or ones that stand for them.
func chooseArtifacts(repository string, config map[string]any, built *stage.Built, set *stage.Stage) error {
	if given, _ := config["artifactsDir"].(string); given != "" {
		if !filepath.IsAbs(given) {
			config["artifactsDir"] = filepath.Join(repository, given)
		}
		fmt.Fprintf(os.Stderr, "Charts and manifests: those of artifactsDir, %s.\n\n", config["artifactsDir"])
		return nil
	}
	cache := filepath.Join(repository, ".cache", "artifacts")
	complete := true
	for _, artifact := range built.Pins.Artifacts {
		version := artifact.Version
		if artifact.Commit != "" {
			version = artifact.Commit
		}
		_, err := os.Stat(filepath.Join(cache, version, artifact.File))
		complete = complete && err == nil
	}
	if complete {
		link := filepath.Join(set.ProjectDir(), ".cache", "artifacts")
		if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.RemoveAll(link)); err != nil { //nolint:gosec // nothing secret
			return err
		}
		fmt.Fprintf(os.Stderr, "Charts and manifests: the pinned ones, from %s. (Charts are not rendered: of Kamaji's and HAMi's the stand-in knows what they make.)\n\n", cache)
		return os.Symlink(cache, link)
	}
	fmt.Fprint(os.Stderr, "Charts and manifests: small ones that stand for the pinned ones. Set artifactsDir, or run `make up` once, for the real ones.\n\n")
	config["artifactsDir"] = set.Artifacts()
	return artifacts.Write(set.Artifacts(), built.Pins.Names())
}
