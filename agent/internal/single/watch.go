// Package single watches one object. All that the agent reads continuously is
// one Node and one ConfigMap, and a list and watch limited to a name is what
// RBAC can grant for a single object.
package single

import (
	"context"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Watch calls onSet for the object as it is and for each of its changes, and
// onGone when it is deleted, one call at a time, until ctx ends. It rides out
// an API server that is away. The object given to onSet must not be changed.
func Watch[T runtime.Object](ctx context.Context, client rest.Interface, resource, namespace, name string, example T,
	onSet func(T), onGone func(),
) {
	set := func(obj any) {
		if object, ok := obj.(T); ok {
			onSet(object)
		}
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client, resource, namespace,
			fields.OneTermEqualSelector("metadata.name", name)),
		ObjectType: example,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    set,
			UpdateFunc: func(_, obj any) { set(obj) },
			DeleteFunc: func(any) { onGone() },
		},
	})
	controller.RunWithContext(ctx)
}
