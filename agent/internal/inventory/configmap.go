package inventory

import (
	"context"
	"fmt"
	"log/slog"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/kube"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/metrics"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/single"
)

// Key is the key of the ConfigMap under which the inventory stands.
const Key = "inventory.json"

// Follow keeps the store equal to the named ConfigMap until ctx ends. What
// cannot be read or is gone leaves the last good inventory in force: pods that
// hold slices must not lose their card to a typing error, and whoever replaces
// a ConfigMap deletes it for a moment.
func Follow(ctx context.Context, client *kube.Client, namespace, name string, store *Store,
	m *metrics.Metrics, log *slog.Logger,
) {
	reject := func(err error) {
		m.InventoryErrors.Inc()
		m.InventoryRejected.Set(1)
		log.Error("inventory rejected, the last good one stays in force", "configMap", name, "error", err)
	}
	single.Watch(ctx, client.REST, "configmaps", namespace, name, &corev1.ConfigMap{},
		func(cm *corev1.ConfigMap) {
			text, ok := cm.Data[Key]
			if !ok {
				reject(fmt.Errorf("the ConfigMap has no key %q", Key))
				return
			}
			inv, err := Parse([]byte(text))
			if err != nil {
				reject(err)
				return
			}
			m.InventoryRejected.Set(0)
			if store.Set(inv) {
				all, healthy := inv.Totals(), inv.Healthy()
				log.Info("inventory taken over", "cards", all.Cards, "healthyCards", healthy.Cards,
					"slices", all.Slices, "memoryMiB", all.MemoryMiB, "resourceVersion", cm.ResourceVersion)
			}
		},
		func() { reject(fmt.Errorf("ConfigMap %s/%s is gone", namespace, name)) })
}
