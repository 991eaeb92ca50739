package hami

import (
	"reflect"
	"testing"
)

func TestSlices(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want Slices
		next int
	}{
		"none":           {"", nil, -1},
		"one":            {"GPU-a,NVIDIA,20000,30:;", Slices{{{"GPU-a", "NVIDIA", 20000, 30}}}, 0},
		"two cards":      {"GPU-a,NVIDIA,1,2:GPU-b,NVIDIA,3,4:;", Slices{{{"GPU-a", "NVIDIA", 1, 2}, {"GPU-b", "NVIDIA", 3, 4}}}, 0},
		"first is done":  {";GPU-a,NVIDIA,1,2:;", Slices{nil, {{"GPU-a", "NVIDIA", 1, 2}}}, 1},
		"gap":            {"GPU-a,NVIDIA,1,2:;;GPU-b,NVIDIA,3,4:;", Slices{{{"GPU-a", "NVIDIA", 1, 2}}, nil, {{"GPU-b", "NVIDIA", 3, 4}}}, 0},
		"nothing left":   {";;", Slices{nil, nil}, -1},
		"one, no card":   {";", Slices{nil}, -1},
		"without limits": {"GPU-a,NVIDIA,0,0:;", Slices{{{"GPU-a", "NVIDIA", 0, 0}}}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseSlices(test.text)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			if got.String() != test.text {
				t.Errorf("written as %q, was %q", got, test.text)
			}
			if got.Next() != test.next {
				t.Errorf("next is %d, want %d", got.Next(), test.next)
			}
		})
	}
}

func TestSlicesRejects(t *testing.T) {
	for _, text := range []string{"x", "GPU-a:;", "GPU-a,NVIDIA,1:;", "GPU-a,NVIDIA,1,2,3:;", "GPU-a,NVIDIA,x,2:;", "GPU-a,NVIDIA,1,x:;", ",NVIDIA,1,2:;", "GPU-a,NVIDIA,4294967296,2:;"} {
		if got, err := ParseSlices(text); err == nil {
			t.Errorf("%q read as %v", text, got)
		}
	}
}

func TestLockHolder(t *testing.T) {
	namespace, pod, ok := LockHolder("2026-12-01T03:00:00Z,team-a,train-0")
	if namespace != "team-a" || pod != "train-0" || !ok {
		t.Errorf("got %s/%s %v", namespace, pod, ok)
	}
	for _, lock := range []string{"", "2026-12-01T03:00:00Z", "2026-12-01T03:00:00Z,,", "2026-12-01T03:00:00Z,team-a", "a,b,c,d"} {
		if _, _, ok := LockHolder(lock); ok {
			t.Errorf("%q has a holder", lock)
		}
	}
}
