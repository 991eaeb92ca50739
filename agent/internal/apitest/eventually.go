package apitest

import (
	"testing"
	"time"
)

// Eventually waits until check returns no complaint and fails the test with the
// last one after 10 s.
func Eventually(tb testing.TB, check func() string) {
	tb.Helper()
	deadline := time.After(10 * time.Second)
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for {
		complaint := check()
		if complaint == "" {
			return
		}
		select {
		case <-deadline:
			tb.Fatalf("after 10 s: %s", complaint)
		case <-again.C:
		}
	}
}
