package slips

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
)

// unseenText lists slips that change nothing that anybody can see: a line with their Identity, and the reason in the indented lines
// below it.
//
//go:embed unseen.txt
var unseenText string

func readUnseen(text string) map[string]string {
	unseen := map[string]string{}
	var identity string
	for line := range strings.Lines(text) {
		switch trimmed := strings.TrimSpace(line); {
		case trimmed == "" || strings.HasPrefix(line, "#"):
		case line[0] == ' ' || line[0] == '\t':
			unseen[identity] = strings.TrimSpace(unseen[identity] + " " + trimmed)
		default:
			identity = trimmed
			unseen[identity] = ""
		}
	}
	return unseen
}

// Report is the result of a run.
type Report struct {
	Seed    uint64    `json:"seed"`
	Seconds float64   `json:"seconds"`
	Results []*Result `json:"results"`
}

// WriteJSON writes the report to a file.
func (r *Report) WriteJSON(file string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o600)
}

// WriteTable writes the counts per package and per kind, and what survived.
func (r *Report) WriteTable(w io.Writer) error {
	err := r.counts(w, "PACKAGE", func(s *Result) string { return path.Dir(s.File) })
	if err == nil {
		err = r.counts(w, "KIND", func(s *Result) string { return string(s.Kind) })
	}
	if err == nil && len(r.Results) > 0 {
		_, err = fmt.Fprintf(w, "\na slip took %.1f s in the median, and %.1f s of processors\n",
			median(r.Results, func(s *Result) float64 { return s.Seconds }), median(r.Results, func(s *Result) float64 { return s.CPU }))
	}
	for _, s := range r.Results {
		if s.Verdict == Noticed || err != nil {
			continue
		}
		ran := fmt.Sprintf("%d of %d tests that reach it", s.Run, s.Reaching)
		if s.Unstable != "" {
			ran += "; " + s.Unstable + " once, but not when it was repeated"
		}
		_, err = fmt.Fprintf(w, "\n%s %d (%s): %s:%d %s, %s\n%s", s.Verdict, s.ID, s.Kind, s.File, s.Line, s.Func, ran, s.Change)
		if err != nil {
			break
		}
		if s.Verdict == Unseen {
			_, err = fmt.Fprintln(w, "  reason:", s.Reason)
		} else {
			_, err = fmt.Fprintln(w, "  unseen.txt:", s.Identity())
		}
	}
	return err
}

func median(results []*Result, value func(*Result) float64) float64 {
	values := make([]float64, len(results))
	for i, r := range results {
		values[i] = value(r)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func (r *Report) counts(out io.Writer, title string, group func(*Result) string) error {
	verdicts := []Verdict{Noticed, Survived, Unreached, Unseen}
	counts := map[string]map[Verdict]int{}
	var groups []string
	for _, s := range r.Results {
		name := group(s)
		for _, key := range []string{name, "total"} {
			if counts[key] == nil {
				counts[key] = map[Verdict]int{}
			}
			counts[key][s.Verdict]++
		}
		groups = append(groups, name)
	}
	slices.Sort(groups)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, cells ...any) {
		_, _ = fmt.Fprint(w, name, "\t") // Flush returns the error
		for _, cell := range cells {
			_, _ = fmt.Fprint(w, cell, "\t")
		}
		_, _ = fmt.Fprintln(w)
	}
	row(title, "SLIPS", "NOTICED", "SURVIVED", "UNREACHED", "UNSEEN")
	for _, name := range append(slices.Compact(groups), "total") {
		cells, sum := make([]any, 1, 5), 0
		for _, v := range verdicts {
			sum += counts[name][v]
			cells = append(cells, counts[name][v])
		}
		cells[0] = sum
		row(name, cells...)
	}
	return w.Flush()
}
