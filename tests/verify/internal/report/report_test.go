package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

func sample() *Report {
	r := New(io.Discard)
	r.Add(Result{Case: "TC-02", Tenant: "b", Title: "two", Status: Failed, Expected: "x < 3", Seen: "4", Look: []string{"there"}})
	r.Add(Result{Case: "TC-01", Tenant: "b", Title: "one", Status: Passed, Detail: "fine", Seconds: 1.5})
	r.Add(Result{Case: "TC-01", Tenant: "a", Title: "one", Status: Skipped, Detail: "no cards"})
	r.Add(Result{Case: "TC-02", Tenant: "a", Title: "two", Status: Limited, Detail: "known"})
	return r
}

func TestResultOf(t *testing.T) {
	failure := &Failure{Expected: "e", Seen: "s", Look: []string{"l"}}
	for err, want := range map[error]Status{
		failure: Failed, fmt.Errorf("and then: %w", failure): Failed, Skip("no cards"): Skipped, Limit("known"): Limited, errors.New("odd"): Failed,
	} {
		if got := ResultOf("", err); got.Status != want || got.Expected+got.Detail == "" {
			t.Errorf("%v: %+v", err, got)
		}
	}
	// A case that failed and then could not clean up failed.
	if got := ResultOf("", errors.Join(failure, Skip("x"))); got.Status == Passed {
		t.Errorf("%+v", got)
	}
	if got := ResultOf("seen", nil); got.Status != Passed || got.Detail != "seen" {
		t.Errorf("%+v", got)
	}
}

func TestOK(t *testing.T) {
	for _, test := range []struct {
		statuses []Status
		want     bool
	}{
		{nil, false}, {[]Status{Skipped}, false}, {[]Status{Limited}, false}, {[]Status{Passed}, true},
		{[]Status{Passed, Skipped, Limited}, true}, {[]Status{Passed, Failed}, false},
	} {
		r := New(io.Discard)
		for _, status := range test.statuses {
			r.Add(Result{Status: status})
		}
		if got := r.OK(); got != test.want {
			t.Errorf("%v: %v", test.statuses, got)
		}
	}
}

// TestLines: a failure says what was expected, what was seen and where to look.
func TestLines(t *testing.T) {
	var said bytes.Buffer
	r := New(&said)
	r.Add(sample().results[0])
	for _, want := range []string{"TC-02", "b", "x < 3", "4", "there"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%q is not in\n%s", want, &said)
		}
	}
}

func TestTable(t *testing.T) {
	var said bytes.Buffer
	sample().Table(&said)
	lines := strings.Split(strings.TrimSpace(said.String()), "\n")
	if len(lines) < 3 || !strings.HasPrefix(lines[1], "TC-01") || !strings.HasPrefix(lines[2], "TC-02") {
		t.Fatalf("not in order:\n%s", &said)
	}
	if at := strings.Index(lines[1], "skipped"); at < 0 || at > strings.Index(lines[1], "passed") {
		t.Errorf("not in the tenants' columns:\n%s", &said)
	}
	if !strings.Contains(said.String(), "1 passed, 1 failed, 1 skipped, 1 known limits") {
		t.Errorf("the sum is wrong:\n%s", &said)
	}
}

func TestFiles(t *testing.T) {
	var text bytes.Buffer
	if err := sample().JSON(&text); err != nil {
		t.Fatal(err)
	}
	var results []Result
	if err := json.Unmarshal(text.Bytes(), &results); err != nil || len(results) != 4 || results[3].Expected != "x < 3" {
		t.Errorf("%v %+v", err, results)
	}
	text.Reset()
	if err := sample().JUnit(&text, "p"); err != nil {
		t.Fatal(err)
	}
	var suites junitSuites
	if err := xml.Unmarshal(text.Bytes(), &suites); err != nil {
		t.Fatal(err)
	}
	for _, suite := range suites.Suites {
		failures, skipped := 0, 0
		for _, entry := range suite.Cases {
			if entry.Failure != nil {
				failures++
				if !strings.Contains(entry.Failure.Message, "x < 3") || !strings.Contains(entry.Failure.Text, "there") {
					t.Errorf("%+v", entry.Failure)
				}
			}
			if entry.Skipped != nil {
				skipped++
			}
		}
		if suite.Tests != len(suite.Cases) || suite.Failures != failures || suite.Skipped != skipped {
			t.Errorf("%s counts %d, %d, %d; has %d, %d, %d", suite.Name, suite.Tests, suite.Failures, suite.Skipped, len(suite.Cases), failures, skipped)
		}
	}
	if len(suites.Suites) != 2 {
		t.Errorf("%d suites for two tenants", len(suites.Suites))
	}
}
