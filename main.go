// Program gpu-tenants builds a multi-tenant GPU platform with mock cards on one
// Linux machine with Docker.
package main

import (
	"github.com/pulumi/pulumi/sdk/v3/go/pulumi"

	"github.com/gpu-tenants/gpu-tenants/stacks"
	"github.com/gpu-tenants/gpu-tenants/stacks/host"
)

func main() {
	pulumi.Run(func(ctx *pulumi.Context) error {
		cfg, err := stacks.Load(ctx)
		if err != nil {
			return err
		}
		return stacks.Platform(ctx, cfg, host.Real())
	})
}
