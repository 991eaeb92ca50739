package host

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
)

const dockerHub = "docker.io"

// ThroughMirror is the name under which a mirror serves an image: its upstream
// path behind the mirror's host. Without a mirror, and for an image that names
// the mirror itself, that is the image's own name.
func ThroughMirror(image, mirror string) string {
	if mirror == "" {
		return image
	}
	host := mirrorHost(mirror)
	registry, path := splitImage(image)
	if host == "" || registry == host {
		return image
	}
	return host + "/" + path
}

// mirrorHost is host[:port] of the setting.
func mirrorHost(mirror string) string {
	_, rest, found := strings.Cut(mirror, "://")
	if !found {
		rest = mirror
	}
	host, _, _ := strings.Cut(rest, "/")
	return host[strings.LastIndex(host, "@")+1:] // never show who logs in
}

// splitImage is what Docker makes of an image's name: the registry, and the
// rest with the tag and the digest.
func splitImage(image string) (registry, rest string) {
	first, rest, found := strings.Cut(image, "/")
	if !found || !strings.ContainsAny(first, ".:") && first != "localhost" {
		first, rest = dockerHub, image
	}
	if first == "index."+dockerHub {
		first = dockerHub
	}
	if first == dockerHub && !strings.Contains(rest, "/") {
		rest = "library/" + rest
	}
	return first, rest
}

// registry is one that has to answer.
type registry struct {
	name   string // as images name it
	images []string
	nodes  bool // images are pulled from it inside the nodes
}

// registries asks every registry that is still needed for a sign of life. Images
// that Docker has need none; with a mirror, the mirror is the only one.
func (p *preflight) registries(ctx context.Context) []Fault {
	mirror := mirrorHost(p.r.Mirror)
	scheme, _, isURL := strings.Cut(p.r.Mirror, "://")
	if isURL && scheme != "http" && scheme != "https" || p.r.Mirror != "" && mirror == "" {
		return []Fault{{
			Check:   checkRegistry,
			Problem: "the setting `mirror` is neither host[:port] nor a URL with http or https.",
			Remedy:  "For example: mirror: http://registry.example:5000",
			Fatal:   true,
		}}
	}
	needed := map[string]*registry{}
	need := func(name string) *registry {
		if needed[name] == nil {
			needed[name] = &registry{name: name}
		}
		return needed[name]
	}
	for _, image := range p.absent(ctx) {
		name, _ := splitImage(ThroughMirror(image, p.r.Mirror))
		one := need(name)
		one.images = append(one.images, image)
	}
	hosts := p.r.RegistryHosts
	if mirror != "" && len(hosts) > 0 {
		hosts = []string{mirror}
	}
	for _, host := range hosts {
		need(host).nodes = true
	}

	names := make([]string, 0, len(needed))
	for name := range needed {
		names = append(names, name)
	}
	slices.Sort(names)
	found := make([][]Fault, len(names))
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() { found[i] = p.registry(ctx, needed[name]) })
	}
	group.Wait()
	return slices.Concat(found...)
}

// absent are the images that Docker has to pull, in their order and once each.
func (p *preflight) absent(ctx context.Context) []string {
	images := slices.Clone(p.r.ImageRefs)
	slices.Sort(images)
	images = slices.Compact(images)
	missing := make([]bool, len(images))
	var group sync.WaitGroup
	for i, image := range images {
		group.Go(func() {
			missing[i] = !p.has(ctx, image)
			if through := ThroughMirror(image, p.r.Mirror); missing[i] && through != image {
				missing[i] = !p.has(ctx, through)
			}
		})
	}
	group.Wait()
	var absent []string
	for i, image := range images {
		if missing[i] {
			absent = append(absent, image)
		}
	}
	return absent
}

// has reports whether Docker has the image. When in doubt it has not: then its
// registry is asked, which does no harm.
func (p *preflight) has(ctx context.Context, image string) bool {
	_, err := p.System.docker(ctx, "image", "inspect", "--format", "{{.Id}}", image)
	return err == nil
}

// registry asks one of them.
func (p *preflight) registry(ctx context.Context, one *registry) []Fault {
	var faults []Fault
	mirrored := one.name == mirrorHost(p.r.Mirror)
	plain := mirrored && strings.HasPrefix(p.r.Mirror, "http://")
	insecure := p.insecure(ctx, one.name)
	if plain && !insecure && len(one.images) > 0 {
		faults = append(faults, Fault{
			Check: checkRegistry,
			Problem: fmt.Sprintf("the mirror %s speaks plain HTTP, which the Docker daemon refuses; it has to pull %s from there.",
				one.name, strings.Join(one.images, ", ")),
			Remedy: fmt.Sprintf("Add to /etc/docker/daemon.json: {\"insecure-registries\": [%q]}, then: sudo systemctl reload docker\n"+
				"Or load the node image with `docker load` and name it in `nodeImages` without a digest, which a loaded image has not.",
				one.name),
			Fatal: true,
		})
	}

	host := one.name
	if host == dockerHub {
		host = "registry-1." + dockerHub
	}
	var urls []string
	if !plain {
		urls = append(urls, "https://"+host+"/v2/")
	}
	if plain || insecure && !strings.HasPrefix(p.r.Mirror, "https://") {
		urls = append(urls, "http://"+host+"/v2/") // what Docker tries next
	}
	err := p.answers(ctx, urls...)
	if err == nil {
		return faults
	}
	var uses []string
	if len(one.images) > 0 {
		uses = append(uses, "Docker has to pull "+strings.Join(one.images, ", "))
	}
	if one.nodes {
		uses = append(uses, "the nodes pull images")
	}
	fault := Fault{
		Check:   checkRegistry,
		Problem: fmt.Sprintf("the registry %s cannot be reached, from which %s: %v.", one.name, strings.Join(uses, " and "), err),
		// A stack that runs has its images.
		Fatal: p.r.Fresh || len(one.images) > 0,
	}
	var remedies []string
	switch {
	case mirrored:
		remedies = append(remedies, "Start the mirror or correct the setting `mirror` (a URL with http:// when it speaks plain HTTP).")
	default:
		remedies = append(remedies, "Mend the network or the proxy variables, or set `mirror` to a registry that can be reached and has the images.")
	}
	if len(one.images) > 0 {
		remedies = append(remedies, "Or name in `nodeImages` a node image that can be pulled, or that `docker load` brought "+
			"(without a digest, which a loaded image has not).")
		switch d := p.o.Docker; {
		case d.Proxied:
			fault.Fatal = false
			remedies = append(remedies, "The Docker daemon has a proxy of its own, which was not tried: docker pull "+one.images[0])
		case one.name == dockerHub && len(d.RegistryMirrors) > 0:
			fault.Fatal = false
			remedies = append(remedies, "The Docker daemon has mirrors of Docker Hub, which were not tried: docker pull "+one.images[0])
		}
	}
	var untrusted *tls.CertificateVerificationError
	if errors.As(err, &untrusted) { // Docker and the nodes may have been told otherwise
		fault.Fatal = false
		remedies = append(remedies, "It answers. Docker takes its certificate from /etc/docker/certs.d/"+one.name+"/ca.crt.")
	}
	fault.Remedy = strings.Join(remedies, "\n")
	return append(faults, fault)
}

// insecure reports whether the Docker daemon lets a registry speak plain HTTP.
func (p *preflight) insecure(ctx context.Context, name string) bool {
	if slices.Contains(p.o.Docker.InsecureRegistries, name) {
		return true
	}
	host := name
	if bare, _, err := net.SplitHostPort(name); err == nil {
		host = bare
	}
	if len(p.o.Docker.InsecureCIDRs) == 0 || host == dockerHub {
		return false
	}
	texts := []string{host}
	if _, err := netip.ParseAddr(host); err != nil {
		limited, cancel := context.WithTimeout(ctx, p.NetworkTimeout)
		defer cancel()
		texts, _ = p.LookupHost(limited, host) // unknown: the question that follows says so
	}
	for _, text := range texts {
		addr, err := netip.ParseAddr(text)
		if err == nil && slices.ContainsFunc(p.o.Docker.InsecureCIDRs, func(cidr netip.Prefix) bool { return cidr.Contains(addr) }) {
			return true
		}
	}
	return false
}

// downloads asks every host from which something is to be downloaded.
func (p *preflight) downloads(ctx context.Context) []Fault {
	needed := map[string][]string{} // root -> files
	for _, text := range p.r.URLs {
		parsed, err := url.Parse(text)
		if err != nil || parsed.Host == "" {
			continue // not this check's to say
		}
		root := parsed.Scheme + "://" + parsed.Host + "/"
		needed[root] = append(needed[root], parsed.Redacted())
	}
	roots := make([]string, 0, len(needed))
	for root := range needed {
		roots = append(roots, root)
	}
	slices.Sort(roots)
	found := make([][]Fault, len(roots))
	var group sync.WaitGroup
	for i, root := range roots {
		group.Go(func() {
			err := p.answers(ctx, root)
			if err == nil {
				return
			}
			files := needed[root]
			slices.Sort(files)
			found[i] = []Fault{{
				Check: checkDownload,
				Problem: fmt.Sprintf("%v. It has to give:\n%s",
					err, strings.Join(slices.Compact(files), "\n")),
				Remedy: "Mend the network or the proxy variables, or put the files in a folder and set `artifactsDir` to it.",
				Fatal:  true,
			}}
		})
	}
	group.Wait()
	return slices.Concat(found...)
}

// answers asks the addresses one after the other, within one time limit, until
// one speaks HTTP. Whatever it says is fine, except what a proxy says of a host
// that it cannot reach.
func (p *preflight) answers(ctx context.Context, addresses ...string) error {
	limited, cancel := context.WithTimeout(ctx, p.NetworkTimeout)
	defer cancel()
	var first error
	for _, address := range addresses {
		err := p.get(limited, address)
		if err == nil {
			return nil
		}
		if limited.Err() != nil {
			err = fmt.Errorf("no answer within %s", p.NetworkTimeout)
		}
		first = cmp.Or(first, fmt.Errorf("GET %s: %w", address, err))
	}
	return first
}

func (p *preflight) get(ctx context.Context, address string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return err
	}
	response, err := p.HTTP.Do(request)
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // without the address, which the caller knows
	}
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil {
		return err
	}
	switch response.StatusCode {
	case http.StatusProxyAuthRequired, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return errors.New(response.Status)
	}
	return nil
}
