// Command pulumi-resource-kubernetes is Pulumi's Kubernetes provider as its
// module holds it.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/provider"
	"github.com/pulumi/pulumi-kubernetes/provider/v4/pkg/version"
)

func main() {
	schema, err := schema()
	if err != nil {
		fmt.Fprintf(os.Stderr, "the provider's schema: %v; it belongs beside the binary, where the build puts it\n", err)
		os.Exit(1)
	}
	// The mapping to Terraform is for converters alone.
	provider.Serve("kubernetes", version.Version, schema, []byte("{}"))
}

// schema reads what upstream embeds: a package cannot embed another module's
// files. The provider looks into it when it reads what it did not make.
func schema() ([]byte, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(filepath.Dir(binary), "schema.json"))
}
