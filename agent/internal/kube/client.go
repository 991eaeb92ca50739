// Package kube is the little of an API client that the agent needs. client-go's
// own typed client brings all kinds of all API groups with it: it alone made
// the binary, of which every worker has a copy, nearly twice as large.
package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Client reads and patches nodes and pods. Its methods return the API server's
// errors as they are, for apierrors.
type Client struct {
	// REST is for watches.
	REST rest.Interface
}

// New returns a client.
func New(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.APIPath = "/api"
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.UserAgent = "mock-gpu-agent"
	// No limit of its own: the default of 5 requests per second would be felt
	// in Allocate, and whatever repeats requests here does so at intervals.
	config.QPS = -1
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	return &Client{REST: client}, nil
}

// Node reads a node.
func (c *Client) Node(ctx context.Context, name string) (*corev1.Node, error) {
	node := &corev1.Node{}
	err := c.REST.Get().Resource("nodes").Name(name).Do(ctx).Into(node)
	return node, err
}

// PatchNode applies a JSON merge patch to a node or a subresource of it.
func (c *Client) PatchNode(ctx context.Context, name string, patch []byte, subresources ...string) (*corev1.Node, error) {
	node := &corev1.Node{}
	err := c.REST.Patch(types.MergePatchType).Resource("nodes").Name(name).SubResource(subresources...).
		Body(patch).Do(ctx).Into(node)
	return node, err
}

// Pod reads a pod.
func (c *Client) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := c.REST.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(pod)
	return pod, err
}

// Pods lists those of all namespaces that have these fields.
func (c *Client) Pods(ctx context.Context, with fields.Set) ([]corev1.Pod, error) {
	list := &corev1.PodList{}
	options := &metav1.ListOptions{FieldSelector: with.String()}
	err := c.REST.Get().Resource("pods").VersionedParams(options, metav1.ParameterCodec).Do(ctx).Into(list)
	return list.Items, err
}

// PatchPod applies a JSON merge patch to a pod.
func (c *Client) PatchPod(ctx context.Context, namespace, name string, patch []byte) error {
	return c.REST.Patch(types.MergePatchType).Namespace(namespace).Resource("pods").Name(name).Body(patch).Do(ctx).Error()
}
