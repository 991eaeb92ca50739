package objects

import (
	"maps"
	"slices"
	"strings"
)

// builtIn are the kinds that an API server has without any definition: by group
// and version, the cluster's own ones with a "!" in front.
var builtIn = map[string]string{
	"v1":                              "!Namespace !Node !PersistentVolume Pod Service ServiceAccount ConfigMap Secret ResourceQuota LimitRange Event Endpoints PersistentVolumeClaim",
	"apps/v1":                         "Deployment DaemonSet StatefulSet ReplicaSet",
	"batch/v1":                        "Job CronJob",
	"rbac.authorization.k8s.io/v1":    "!ClusterRole !ClusterRoleBinding Role RoleBinding",
	"policy/v1":                       "PodDisruptionBudget",
	"networking.k8s.io/v1":            "NetworkPolicy Ingress !IngressClass",
	"admissionregistration.k8s.io/v1": "!ValidatingWebhookConfiguration !MutatingWebhookConfiguration !ValidatingAdmissionPolicy !ValidatingAdmissionPolicyBinding",
	"apiextensions.k8s.io/v1":         "!CustomResourceDefinition",
	"apiregistration.k8s.io/v1":       "!APIService",
	"scheduling.k8s.io/v1":            "!PriorityClass",
	"storage.k8s.io/v1":               "!StorageClass !CSIDriver",
	"coordination.k8s.io/v1":          "Lease",
	"discovery.k8s.io/v1":             "EndpointSlice",
	"autoscaling/v2":                  "HorizontalPodAutoscaler",
	"flowcontrol.apiserver.k8s.io/v1": "!FlowSchema !PriorityLevelConfiguration",
	"certificates.k8s.io/v1":          "!CertificateSigningRequest",
	"node.k8s.io/v1":                  "!RuntimeClass",
	"authentication.k8s.io/v1":        "!TokenReview",
	"authorization.k8s.io/v1":         "!SubjectAccessReview",
}

func plural(kind string) string {
	lower := strings.ToLower(kind)
	switch {
	case lower == "endpoints":
		return lower
	case strings.HasSuffix(lower, "y"):
		return strings.TrimSuffix(lower, "y") + "ies"
	case strings.HasSuffix(lower, "s"):
		return lower + "es"
	}
	return lower + "s"
}

// kinds are all that the cluster knows.
func (c *cluster) kinds() []Kind {
	var all []Kind
	for _, apiVersion := range slices.Sorted(maps.Keys(builtIn)) {
		for name := range strings.FieldsSeq(builtIn[apiVersion]) {
			kind, clusterWide := strings.CutPrefix(name, "!")
			all = append(all, Kind{apiVersion, kind, plural(kind), !clusterWide})
		}
	}
	for _, at := range slices.Sorted(maps.Keys(c.objects)) {
		definition := c.objects[at]
		if definition["kind"] != "CustomResourceDefinition" {
			continue
		}
		versions, _ := field(definition, "spec", "versions").([]any)
		for _, entry := range versions {
			version, _ := entry.(Object)
			if version["served"] == false {
				continue
			}
			all = append(all, Kind{
				APIVersion: text(definition, "spec", "group") + "/" + text(version, "name"),
				Kind:       text(definition, "spec", "names", "kind"),
				Plural:     text(definition, "spec", "names", "plural"),
				Namespaced: text(definition, "spec", "scope") != "Cluster",
			})
		}
	}
	return all
}

func (c *cluster) kindOf(apiVersion, kind string) (Kind, error) {
	for _, known := range c.kinds() {
		if known.APIVersion == apiVersion && known.Kind == kind {
			return known, nil
		}
	}
	return Kind{}, refuse(NoMatch, "no matches for kind %q in version %q", kind, apiVersion)
}

// resource finds a kind by what people call it: pod, pods, Pod, and with
// its group, tenantcontrolplanes.kamaji.clastix.io.
func (c *cluster) resource(name string) (Kind, error) {
	lower, group, hasGroup := strings.Cut(strings.ToLower(name), ".")
	for _, known := range c.kinds() {
		if hasGroup && !strings.HasPrefix(known.APIVersion, group+"/") {
			continue
		}
		if lower == known.Plural || lower == strings.ToLower(known.Kind) {
			return known, nil
		}
	}
	return Kind{}, refuse(NoMatch, "error: the server doesn't have a resource type %q", name)
}
