package config_test

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-tenants/gpu-tenants/stacks/config"
	"github.com/gpu-tenants/gpu-tenants/stacks/pins"
)

// FuzzDecode: whatever the configuration, Decode returns faults or a Config
// that holds what the rest of the program relies on, and the same each time.
//
// The input is a JSON object of texts, or else the value of one key.
func FuzzDecode(f *testing.F) {
	for _, folder := range []string{"valid", "invalid"} {
		for _, path := range fixtures(f, folder) {
			project, _ := readFixture(f, path)
			encoded, err := json.Marshal(project)
			if err != nil {
				f.Fatal(err)
			}
			f.Add("", string(encoded))
		}
	}
	f.Add("tenants", `[{"name":"a","gpus":["L4xx","x","X2",{"model":"x","memory":1}],"unhealthy":[-1]}]`)
	f.Add("kubelet", `{"a":[1e400,{"b":null}]}`)
	f.Fuzz(func(t *testing.T, key, value string) {
		project := map[string]string{key: value}
		if key == "" {
			project = nil
			if json.Unmarshal([]byte(value), &project) != nil {
				t.Skip("no object of texts")
			}
		}
		decoded, err := config.Decode(project)
		again, errAgain := config.Decode(project)
		if !reflect.DeepEqual(decoded, again) || !reflect.DeepEqual(err, errAgain) {
			t.Errorf("decoding twice gave\n%v %v\n%v %v", decoded, err, again, errAgain)
		}
		if err == nil {
			checkInvariants(t, decoded)
			return
		}
		checkFaults(t, faultsOf(t, project))
	})
}

func checkFaults(t *testing.T, faults config.Faults) {
	t.Helper()
	if len(faults) == 0 {
		t.Error("an error without a fault")
	}
	for i, fault := range faults {
		if fault.Path == "" || fault.Message == "" {
			t.Errorf("an empty fault: %+v", fault)
		}
		if slices.Contains(faults[:i], fault) {
			t.Errorf("a fault twice: %+v", fault)
		}
	}
	if lines := strings.Count(faults.Error(), "\n"); lines != len(faults) {
		t.Errorf("%d faults in %d lines:\n%v", len(faults), lines, faults)
	}
}

var (
	dns1035  = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
	flagName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)
)

// checkInvariants checks what a Config promises, without Decode's own code.
func checkInvariants(t *testing.T, c *config.Config) {
	t.Helper()
	check := func(holds bool, format string, args ...any) {
		t.Helper()
		if !holds {
			t.Errorf(format, args...)
		}
	}
	service := checkSubnet(t, c.ServiceCIDR, 12, 24)
	var network netip.Prefix
	if c.Network != "" {
		network = checkSubnet(t, c.Network, 16, 24)
		check(!network.Overlaps(service), "network %s overlaps %s", network, service)
	}
	check(c.EtcdReplicas >= 1 && c.EtcdReplicas <= 5 && c.EtcdReplicas%2 == 1, "etcd has %d replicas", c.EtcdReplicas)
	check(c.SlicesPerCard >= 1 && c.SlicesPerCard <= 1000, "%d slices", c.SlicesPerCard)
	check(c.MemoryScaling > 0 && c.MemoryScaling <= 10, "memory times %g", c.MemoryScaling)
	check(c.CoreScaling > 0 && c.CoreScaling <= 10, "cores times %g", c.CoreScaling)
	check(c.MaxStarting >= 0, "%d start at once", c.MaxStarting)
	check(c.Mock == config.MockAgent || c.Mock == config.MockHAMi, "mock %q", c.Mock)
	check(slices.Contains([]string{config.PreflightEnforce, config.PreflightWarn, config.PreflightSkip}, c.Preflight), "preflight %q", c.Preflight)
	check(!strings.ContainsAny(strings.TrimPrefix(strings.TrimPrefix(c.Mirror, "http://"), "https://"), "/ @?#"), "mirror %q", c.Mirror)
	for flag := range c.KubeletArgs {
		check(flagName.MatchString(flag), "kubelet flag %q", flag)
	}
	checkVersion(t, c, c.KubernetesVersion)
	check(len(c.Tenants) <= config.MaxTenants, "%d tenants", len(c.Tenants))
	for i, tenant := range c.Tenants {
		check(i == 0 || c.Tenants[i-1].Name < tenant.Name, "%s is out of order or there twice", tenant.Name)
		pods := checkSubnet(t, tenant.PodCIDR, 8, 22)
		check(!pods.Overlaps(service), "pods %s overlap services %s", pods, service)
		check(!network.IsValid() || !pods.Overlaps(network), "pods %s overlap network %s", pods, network)
		check(len(tenant.Workers)<<(32-24) <= 1<<(32-pods.Bits()), "%d workers in %s", len(tenant.Workers), pods)
		checkVersion(t, c, tenant.KubernetesVersion)
		checkTenant(t, c, tenant)
	}
}

func checkTenant(t *testing.T, c *config.Config, tenant config.Tenant) {
	t.Helper()
	if !dns1035.MatchString(tenant.Name) || len(tenant.Name) > config.MaxTenantName {
		t.Errorf("name %q", tenant.Name)
	}
	if tenant.ControlPlaneReplicas < 1 || tenant.ControlPlaneReplicas > config.MaxControlPlaneReplicas {
		t.Errorf("%s has %d control planes", tenant.Name, tenant.ControlPlaneReplicas)
	}
	if len(tenant.Workers) < 1 || len(tenant.Workers) > config.MaxWorkersPerTenant {
		t.Errorf("%s has %d workers", tenant.Name, len(tenant.Workers))
	}
	memory, cores := 0.0, 0.0
	for _, worker := range tenant.Workers {
		if len(worker.Cards) > config.MaxCardsPerWorker {
			t.Errorf("%s has a worker with %d cards", tenant.Name, len(worker.Cards))
		}
		for _, card := range worker.Cards {
			checkCard(t, card)
			memory += float64(card.MemoryMiB) * c.MemoryScaling
			cores += float64(card.Cores) * c.CoreScaling
		}
	}
	quota := tenant.Quota
	if quota == nil {
		return
	}
	if quota.GPUMemoryMiB < 0 || quota.GPUCores < 0 || *quota == (config.Quota{}) ||
		float64(quota.GPUMemoryMiB) > memory || float64(quota.GPUCores) > cores {
		t.Errorf("%s has the quota %+v of %g MiB and %g percent", tenant.Name, *quota, memory, cores)
	}
}

func checkCard(t *testing.T, card config.Card) {
	t.Helper()
	if card.Model == "" || strings.ContainsAny(card.Model, " ,/") {
		t.Errorf("a card has the model %q", card.Model)
	}
	if !strings.Contains(card.Type, "NVIDIA") && !strings.Contains(card.Type, "Tesla") || strings.Contains(card.Type, ",") {
		t.Errorf("%s has the type %q", card.Model, card.Type)
	}
	if card.MemoryMiB < 1 || card.MemoryMiB > config.MaxCardMemoryMiB || card.Cores < 1 || card.Cores > config.MaxCardCores {
		t.Errorf("%s has %d MiB and %d percent", card.Model, card.MemoryMiB, card.Cores)
	}
}

func checkVersion(t *testing.T, c *config.Config, version string) {
	t.Helper()
	if c.NodeImages[version] == "" && pins.Load().Kubernetes.NodeImages[version] == "" {
		t.Errorf("there is no node image for %q", version)
	}
}

func checkSubnet(t *testing.T, text string, widest, narrowest int) netip.Prefix {
	t.Helper()
	prefix, err := netip.ParsePrefix(text)
	if err != nil || !prefix.Addr().Is4() || prefix.Masked() != prefix || prefix.Bits() < widest || prefix.Bits() > narrowest {
		t.Errorf("subnet %q", text)
	}
	return prefix
}
