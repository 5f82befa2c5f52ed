package config

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/jackc/pgx/v5"
)

// masked is shown instead of a secret.
// It says that there is one, which is what people ask.
const masked = "(set)"

// Shown is the value without secrets.
// It must be used for every output of a value.
func (v Value) Shown() string {
	switch {
	case v.Text == "":
		return ""
	case v.Secret:
		// People would take (set) for a key.
		if list, err := v.parse(v.Text); err == nil && reflect.ValueOf(list).Len() == 0 {
			return "" // a text without a key, such as a lone comma
		}
		return masked
	case v.Kind == kindPostgres:
		return withoutPassword(v.Text)
	case v.Kind == kindURL:
		u, err := url.Parse(v.Text)
		if err != nil {
			return masked
		}
		return u.Scheme + "://" + u.Host + u.Path // user and query may contain a password
	}
	return v.Text
}

// withoutPassword shows hosts, user and database of a URL or of a text such as "host=db user=ojsd".
// It shows nothing of a text that cannot be parsed.
func withoutPassword(text string) string {
	// PGHOST and the like, which pgx also reads, are part of what is shown, as of what is used.
	c, err := pgx.ParseConfig(text)
	if err != nil {
		return masked
	}
	hosts := []string{net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))}
	for _, f := range c.Fallbacks { // has each host twice, with and without TLS
		if host := net.JoinHostPort(f.Host, strconv.Itoa(int(f.Port))); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	return "postgres://" + c.User + "@" + strings.Join(hosts, ",") + "/" + c.Database
}

// WriteText writes one line per setting, for people.
// A dash stands for empty, so that the columns stay aligned.
func (l *Loaded) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, v := range l.Values {
		shown := v.Shown()
		if shown == "" {
			shown = "-"
		}
		if _, err := fmt.Fprintf(t, "%s\t%s\t%s\n", v.Env, shown, v.Source); err != nil {
			return err
		}
	}
	return t.Flush()
}

// WriteJSON writes all settings, for programs.
// The names of members are stable; scripts read them.
func (l *Loaded) WriteJSON(w io.Writer) error {
	type row struct {
		Name   string `json:"name"`
		Flag   string `json:"flag"`
		Value  string `json:"value"`
		Source string `json:"source"`
	}
	rows := []row{}
	for _, v := range l.Values {
		rows = append(rows, row{v.Env, "--" + v.Flag, v.Shown(), v.Source})
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(rows)
}
