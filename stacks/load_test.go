package stacks

import (
	"maps"
	"strings"
	"testing"
)

func TestAllKeys(t *testing.T) {
	for name, test := range map[string]struct {
		environment string
		want        map[string]string
	}{
		"none":            {"", map[string]string{}},
		"empty":           {"{}", map[string]string{}},
		"null":            {"null", map[string]string{}},
		"the project's":   {`{"gpu-tenants:tenants":"[]","gpu-tenants:misspelt":"x","gpu-tenants:a:b":"c"}`, map[string]string{"tenants": "[]", "misspelt": "x", "a:b": "c"}},
		"and others'":     {`{"gpu-tenants:mock":"hami","gpu-tenants-two:mock":"x","kubernetes:context":"y","mock":"z"}`, map[string]string{"mock": "hami"}},
		"only the others": {`{"aws:region":"x"}`, map[string]string{}},
	} {
		got, err := allKeys("gpu-tenants", test.environment)
		if err != nil || got == nil || !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, %v; want %v", name, got, err, test.want)
		}
	}
	for _, broken := range []string{"words", `["a"]`, `{"gpu-tenants:mock":1}`} {
		if got, err := allKeys("gpu-tenants", broken); err == nil || !strings.Contains(err.Error(), "PULUMI_CONFIG") {
			t.Errorf("%s gives %v, %v", broken, got, err)
		}
	}
}
