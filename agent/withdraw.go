package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/gpu-tenants/gpu-tenants/agent/internal/kube"
	"github.com/gpu-tenants/gpu-tenants/agent/internal/node"
)

const (
	withdrawPath = "/withdraw"
	// withdrawTimeout fits into the 30 s that a pod has to end in.
	withdrawTimeout = 20 * time.Second
)

// withdraw takes back what the agent has published. If the agent of the node
// runs in this pod, as in a preStop hook, it has to do so itself, or it would
// take the removal for somebody's mistake and repair it.
func withdraw(ctx context.Context, opts options, client *kube.Client, log *slog.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, withdrawTimeout)
	defer cancel()
	asked, err := askAgent(ctx, opts)
	switch {
	case err != nil:
		return err
	case asked:
		log.Info("withdrawn by the running agent")
		return nil
	}
	if err := withdrawNode(ctx, client, opts.node, log); err != nil {
		return err
	}
	log.Info("withdrawn, no agent being here")
	return nil
}

// askAgent reports whether the agent of the same node listens here and has
// withdrawn.
func askAgent(ctx context.Context, opts options) (bool, error) {
	_, port, err := net.SplitHostPort(opts.listen)
	if err != nil {
		return false, err
	}
	target := "http://" + net.JoinHostPort("127.0.0.1", port) + withdrawPath + "?node=" + url.QueryEscape(opts.node)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, nil)
	if err != nil {
		return false, err
	}
	response, err := (&http.Client{Transport: &http.Transport{}}).Do(request)
	if err != nil {
		if ctx.Err() != nil {
			return false, err
		}
		return false, nil // Nobody is there.
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
	switch response.StatusCode {
	case http.StatusOK:
		return true, nil
	case http.StatusBadGateway:
		return false, fmt.Errorf("the running agent could not withdraw: %s", strings.TrimSpace(string(body)))
	}
	return false, nil // Another node's agent, or another program altogether.
}

// serveWithdraw is the agent's side. Only a process of the same pod may call
// it, the port as such being open to all who scrape metrics.
func (a *agent) serveWithdraw(w http.ResponseWriter, r *http.Request) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !from.Addr().Unmap().IsLoopback() {
		http.Error(w, "only from within the pod", http.StatusForbidden)
		return
	}
	if name := r.URL.Query().Get("node"); name != a.opts.node {
		http.Error(w, "this is the agent of "+a.opts.node, http.StatusMisdirectedRequest)
		return
	}
	// First of all, so that neither the kubelet nor the keeper brings it back.
	a.store.Withdraw()
	ctx, cancel := context.WithTimeout(r.Context(), withdrawTimeout)
	defer cancel()
	if err := withdrawNode(ctx, a.client, a.opts.node, a.log); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	fmt.Fprintln(w, "withdrawn")
}

// withdrawNode repeats what fails until ctx ends: nobody will come back to it.
func withdrawNode(ctx context.Context, client *kube.Client, name string, log *slog.Logger) error {
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		err := node.Withdraw(ctx, client, name)
		if err == nil {
			return nil
		}
		log.Warn("not withdrawn", "retryIn", pause, "error", err)
		select {
		case <-ctx.Done():
			return fmt.Errorf("not withdrawn: %w", err)
		case <-time.After(pause):
		}
	}
}
