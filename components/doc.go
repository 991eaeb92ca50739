// Package components holds the parts of the platform as Pulumi components,
// in the order in which they are built:
//
//	ManagementCluster   Docker network, kind, cert-manager, MetalLB, Kamaji
//	TenantPlane         a control plane hosted there, and what the tenant runs:
//	  GPUWorker           a node container joined to it
//	  MockGPU             the cards of that node, as HAMi sees them
//
// A component takes plain values where they decide which resources exist and
// Outputs where one resource feeds another. It never reads configuration and
// never looks at the host: package stacks does both, before the first of them
// is made.
//
// What lives inside a cluster carries DeletedWith on what carries the cluster,
// so that destroying it costs one deletion and cannot hang on a dead API. The
// option is set on each such resource, not on a component: children inherit it
// from a component, and a worker's container must never be skipped with a
// control plane's objects.
package components
