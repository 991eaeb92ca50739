// Package metrics defines what the agent counts.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Values of the "result" label of Allocations.
const (
	ResultSuccess  = "success"  // A container got its slice.
	ResultFailed   = "failed"   // The pod was marked as failed.
	ResultVanished = "vanished" // The pod was gone before its turn came.
	ResultNoPod    = "no_pod"   // No pod on this node awaits an allocation.
)

// Values of the "reason" label of LockReleases.
const (
	ReasonDone     = "done"     // All containers of the pod have their slices.
	ReasonFailed   = "failed"   // The allocation failed.
	ReasonVanished = "vanished" // The pod that held it is gone.
	ReasonStale    = "stale"    // The pod that held it had long been through.
)

// Metrics are the agent's gauges and counters.
type Metrics struct {
	Cards             *prometheus.GaugeVec
	Slices            *prometheus.GaugeVec
	Registered        prometheus.Gauge
	Registrations     *prometheus.CounterVec
	Allocations       *prometheus.CounterVec
	AllocationSeconds prometheus.Histogram
	LockReleases      *prometheus.CounterVec
	InventoryErrors   prometheus.Counter
	InventoryRejected prometheus.Gauge
	Repairs           *prometheus.CounterVec
}

// New makes the metrics and registers them.
func New(registry prometheus.Registerer) *Metrics {
	counter := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	m := &Metrics{
		Cards: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mock_gpu_cards", Help: "Mock cards of this node by health.",
		}, []string{"health"}),
		Slices: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mock_gpu_slices", Help: "Slices of the mock cards of this node by health of the card.",
		}, []string{"health"}),
		Registered: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mock_gpu_agent_registered", Help: "1 while the kubelet knows this device plugin.",
		}),
		Registrations: counter("mock_gpu_agent_registrations_total",
			"Registrations with the kubelet by result.", "result"),
		Allocations: counter("mock_gpu_agent_allocations_total",
			"Allocate calls of the kubelet by result.", "result"),
		AllocationSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "mock_gpu_agent_allocation_seconds", Help: "Time that an Allocate call took.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
		LockReleases: counter("mock_gpu_agent_lock_releases_total",
			"Node locks of HAMi removed, by reason.", "reason"),
		InventoryErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mock_gpu_agent_inventory_errors_total", Help: "Inventories that were rejected.",
		}),
		InventoryRejected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mock_gpu_agent_inventory_rejected",
			Help: "1 while the inventory as written is rejected and an older one is in force.",
		}),
		Repairs: counter("mock_gpu_agent_repairs_total",
			"Times that somebody else had changed what this agent publishes on the node, by what.", "what"),
	}
	registry.MustRegister(m.Cards, m.Slices, m.Registered, m.Registrations, m.Allocations, m.AllocationSeconds,
		m.LockReleases, m.InventoryErrors, m.InventoryRejected, m.Repairs)
	return m
}
