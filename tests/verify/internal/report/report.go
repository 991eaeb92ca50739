// Package report tells what came of the cases: a line as each ends, a table at
// the end, and files for machines.
package report

import (
	"cmp"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// Status is what came of a case.
type Status string

// The statuses. Limited is a failure that is known and documented.
const (
	Passed  Status = "passed"
	Failed  Status = "failed"
	Skipped Status = "skipped"
	Limited Status = "known limit"
)

// Result of one case for one tenant.
type Result struct {
	Case    string  `json:"case"`
	Title   string  `json:"title"`
	Tenant  string  `json:"tenant"`
	Status  Status  `json:"status"`
	Seconds float64 `json:"seconds"`
	// Detail is what was seen of a case that passed, and why one was skipped.
	Detail string `json:"detail,omitempty"`
	// Of a case that failed: what was expected, what was seen instead, and where to look.
	Expected string   `json:"expected,omitempty"`
	Seen     string   `json:"seen,omitempty"`
	Look     []string `json:"look,omitempty"`
}

// Failure is the error of a case that failed.
type Failure struct {
	Expected, Seen string
	Look           []string // events, log lines, commands
}

func (f *Failure) Error() string { return fmt.Sprintf("expected %s; seen: %s", f.Expected, f.Seen) }

// Skip is the error of a case that does not apply.
type Skip string

func (s Skip) Error() string { return string(s) }

// Limit is the error of a case that cannot pass, for a reason that is known.
type Limit string

func (l Limit) Error() string { return string(l) }

// ResultOf classifies what a case returned.
func ResultOf(detail string, err error) Result {
	var failure *Failure
	var skip Skip
	var limit Limit
	switch {
	case err == nil:
		return Result{Status: Passed, Detail: detail}
	case errors.As(err, &failure):
		result := Result{Status: Failed, Expected: failure.Expected, Seen: failure.Seen, Look: failure.Look}
		if all := err.Error(); all != failure.Error() { // what went wrong beside it
			result.Look = append(slices.Clone(result.Look), all)
		}
		return result
	case errors.As(err, &skip):
		return Result{Status: Skipped, Detail: string(skip)}
	case errors.As(err, &limit):
		return Result{Status: Limited, Detail: string(limit)}
	}
	return Result{Status: Failed, Expected: "the case to run to its end", Seen: err.Error()}
}

// Report gathers results. It may be used by several goroutines.
type Report struct {
	Out     io.Writer
	mu      sync.Mutex
	results []Result
	started time.Time
}

// New starts a report that writes lines to out.
func New(out io.Writer) *Report { return &Report{Out: out, started: time.Now()} }

// Add takes a result and writes its line.
func (r *Report) Add(result Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, result)
	fmt.Fprintf(r.Out, "%-11s %s %-12s %6.1f s  %s\n", result.Status, result.Case, result.Tenant, result.Seconds, cmp.Or(result.Detail, result.Title))
	if result.Status != Failed {
		return
	}
	fmt.Fprintf(r.Out, "            expected: %s\n            seen:     %s\n", result.Expected, indent(result.Seen))
	for _, look := range result.Look {
		fmt.Fprintf(r.Out, "            look:     %s\n", indent(look))
	}
}

func indent(text string) string {
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n                      ")
}

// Results, by case and tenant.
func (r *Report) Results() []Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	sorted := slices.Clone(r.results)
	slices.SortStableFunc(sorted, func(a, b Result) int {
		return cmp.Or(cmp.Compare(a.Case, b.Case), cmp.Compare(a.Tenant, b.Tenant))
	})
	return sorted
}

// OK says whether nothing failed, and something passed: a run in which every
// case was skipped shows nothing.
func (r *Report) OK() bool {
	passed := false
	for _, result := range r.Results() {
		if result.Status == Failed {
			return false
		}
		passed = passed || result.Status == Passed
	}
	return passed
}

// Table writes a row per case and a column per tenant.
func (r *Report) Table(out io.Writer) {
	results := r.Results()
	var tenants, cases []string
	titles, cells := map[string]string{}, map[string]string{}
	for _, result := range results {
		tenants, cases = append(tenants, result.Tenant), append(cases, result.Case)
		titles[result.Case] = result.Title
		cells[result.Case+"/"+result.Tenant] = fmt.Sprintf("%s %.0f s", result.Status, result.Seconds)
	}
	slices.Sort(tenants)
	tenants, cases = slices.Compact(tenants), slices.Compact(cases)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "\ncase\t%s\tshows\n", strings.Join(tenants, "\t"))
	for _, name := range cases {
		fmt.Fprint(table, name)
		for _, tenant := range tenants {
			fmt.Fprintf(table, "\t%s", cmp.Or(cells[name+"/"+tenant], "-"))
		}
		fmt.Fprintf(table, "\t%s\n", titles[name])
	}
	_ = table.Flush()
	counts := map[Status]int{}
	for _, result := range results {
		counts[result.Status]++
	}
	fmt.Fprintf(out, "\n%d passed, %d failed, %d skipped, %d known limits, in %s\n",
		counts[Passed], counts[Failed], counts[Skipped], counts[Limited], time.Since(r.started).Round(time.Second))
}

// JSON writes the results as an array.
func (r *Report) JSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r.Results())
}

type junitSuites struct {
	XMLName xml.Name     `xml:"testsuites"`
	Suites  []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	Time    string   `xml:"time,attr"`
	Failure *junitIn `xml:"failure"`
	Skipped *junitIn `xml:"skipped"`
	Out     string   `xml:"system-out,omitempty"`
}

type junitIn struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// JUnit writes the results as JUnit's XML, a suite per tenant. What is a known
// limit counts as skipped, which is the nearest that the format has.
func (r *Report) JUnit(out io.Writer, name string) error {
	var all junitSuites
	for _, result := range r.Results() {
		at := slices.IndexFunc(all.Suites, func(s junitSuite) bool { return s.Name == name+"/"+result.Tenant })
		if at < 0 {
			all.Suites = append(all.Suites, junitSuite{Name: name + "/" + result.Tenant})
			at = len(all.Suites) - 1
		}
		suite := &all.Suites[at]
		entry := junitCase{Class: name + "." + result.Tenant, Name: result.Case + " " + result.Title, Time: fmt.Sprintf("%.3f", result.Seconds)}
		switch result.Status {
		case Failed:
			suite.Failures++
			entry.Failure = &junitIn{Message: "expected " + result.Expected, Text: strings.Join(append([]string{"seen: " + result.Seen}, result.Look...), "\n")}
		case Skipped, Limited:
			suite.Skipped++
			entry.Skipped = &junitIn{Message: string(result.Status) + ": " + result.Detail}
		default:
			entry.Out = result.Detail
		}
		suite.Tests++
		suite.Cases = append(suite.Cases, entry)
	}
	if _, err := io.WriteString(out, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(out)
	encoder.Indent("", "  ")
	if err := encoder.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(out, "\n")
	return err
}
