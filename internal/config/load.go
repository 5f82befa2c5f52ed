package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/riverqueue/river/rivershared/levenshtein"
)

// Sources of a value. A flag overrides the environment, the environment the default.
const (
	FromDefault     = "default"
	FromEnvironment = "environment"
	FromFlag        = "flag"
)

// Input is what Load reads.
// Load reads nothing else, so it can be tested without an environment.
type Input struct {
	Settings []Setting         // of the command; it ignores the variables of other settings
	Flags    map[string]string // values by name of the flag
	Environ  []string          // NAME=value; a variable with an empty value counts as unset
	Dev      bool              // take the defaults of `ojsd dev`
	Database bool              // a database is required
}

// Value is a setting that has been read.
// Text may hold a secret: show it by Shown.
type Value struct {
	Setting
	Text   string // as the user wrote it
	Source string
}

// Name is the flag if the value comes from it, else the variable.
func (v Value) Name() string {
	if v.Source == FromFlag {
		return "--" + v.Flag
	}
	return v.Env
}

// Loaded is a configuration with the sources of its values.
// Values has the settings of the command in the order of the table, without those that are wrong.
type Loaded struct {
	Config Config
	Values []Value

	dev bool
}

// Default is the configuration without any flag or variable. It has no database.
// It is for tests and for code that shows defaults.
func Default() Config {
	loaded, err := Load(Input{Settings: Table()})
	if err != nil {
		panic(err) // a struct tag of Config is wrong
	}
	return loaded.Config
}

// Load reads and checks settings. Its error has one line for each wrong setting.
// It returns what could be read even with an error, so that conflicts are found in the same run.
func Load(in Input) (*Loaded, error) {
	l := &Loaded{dev: in.Dev}
	environ := map[string]string{}
	for _, variable := range in.Environ {
		if name, value, _ := strings.Cut(variable, "="); value != "" {
			environ[name] = value
		}
	}
	for _, s := range fixed {
		value, err := s.parse(s.Default)
		if err != nil {
			panic("config: the default of a fixed value of " + s.Area + " is wrong: " + s.Default)
		}
		l.Config.set(s, value)
	}
	var wrong []error
	for _, s := range in.Settings {
		// The precedence is flag, variable, default.
		v := Value{Setting: s, Text: s.fallback(in.Dev), Source: FromDefault}
		if text, ok := environ[s.Env]; ok {
			v.Text, v.Source = text, FromEnvironment
		}
		if text, ok := in.Flags[s.Flag]; ok {
			v.Text, v.Source = text, FromFlag
		}
		value, err := s.parse(v.Text)
		if err != nil {
			err = fmt.Errorf("%s must be %s", v.Name(), v.Expected())
			// The value is repeated only if it cannot contain a password: a URL may hold one, and a key is one.
			if !v.Secret && v.Kind != kindURL && v.Kind != kindPostgres {
				err = fmt.Errorf("%w; it is %q", err, v.Text)
			}
			wrong = append(wrong, err)
			continue
		}
		l.Config.set(s, value)
		l.Values = append(l.Values, v)
	}
	if url, ok := l.Get("database-url"); in.Database && ok && url.Text == "" {
		wrong = append(wrong, errNoDatabase)
	}
	wrong = append(wrong, l.conflicts()...)
	return l, errors.Join(wrong...)
}

// set stores a value that parse has returned.
func (c *Config) set(s Setting, value any) {
	if value != nil {
		field := reflect.ValueOf(c).Elem().FieldByIndex(s.index)
		field.Set(reflect.ValueOf(value).Convert(field.Type()))
	}
}

var errNoDatabase = errors.New("no database: set DATABASE_URL or --database-url, such as postgres://user:password@host/name; `ojsd dev` brings its own")

func (s Setting) fallback(dev bool) string {
	if dev {
		return s.Dev
	}
	return s.Default
}

// CheckProtected refuses to serve strangers: without keys everybody who reaches an interface may read and delete everything. Only what
// serves asks.
func (l *Loaded) CheckProtected() error {
	c := l.Config
	if c.Server.AllowAll || len(c.Server.APIKeys) > 0 {
		return nil
	}
	var open string
	switch {
	case !c.Server.Loopback() && c.Server.ClientCA == "":
		open = l.name("listen") + "=" + c.Server.Listen
	case c.GRPC.Listen != "off" && c.GRPCTLS().ClientCA == "" && !loopback(c.GRPC.Listen):
		open = l.name("grpc-listen") + "=" + c.GRPC.Listen
	default:
		return nil
	}
	return fmt.Errorf("%s is open to the network, and there is no API key: set %s, listen on 127.0.0.1, or set %s=true if everybody who reaches "+
		"this address may do everything", open, l.name("api-key"), l.name("allow-unauthenticated"))
}

// Loopback reports whether only processes of this machine reach the HTTP interface.
func (s Server) Loopback() bool { return loopback(s.Listen) }

func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	ip, invalid := netip.ParseAddr(host)
	return err == nil && (host == "localhost" || invalid == nil && ip.IsLoopback())
}

// conflicts are errors about settings that exclude or need each other. A setting that could not be parsed has its zero value
// here.
// A command that has only some of the settings is not asked about the others.
func (l *Loaded) conflicts() (wrong []error) {
	c := l.Config
	if slices.Contains(c.Server.CORSOrigins, "*") && len(c.Server.APIKeys) > 0 {
		wrong = append(wrong, fmt.Errorf("%s must list the origins, not *, because API keys are set", l.name("cors-origins")))
	}
	wrong = append(wrong, l.tlsConflicts(c.Server.TLS(), "tls-cert", "tls-key", "tls-client-ca")...)
	grpc := TLS{c.GRPC.TLSCert, c.GRPC.TLSKey, c.GRPC.ClientCA}
	return append(wrong, l.tlsConflicts(grpc, "grpc-tls-cert", "grpc-tls-key", "grpc-client-ca")...)
}

// tlsConflicts are about the files of one interface, whose settings have these flags.
func (l *Loaded) tlsConflicts(files TLS, cert, key, clientCA string) (wrong []error) {
	_, hasCert := l.Get(cert)
	_, hasKey := l.Get(key)
	if !hasCert || !hasKey {
		return nil
	}
	if (files.Cert == "") != (files.Key == "") {
		given, missing := l.name(cert), l.name(key)
		if files.Cert == "" {
			given, missing = missing, given
		}
		wrong = append(wrong, fmt.Errorf("%s needs %s: set both or none", given, missing))
	}
	if files.ClientCA != "" && files.Cert == "" {
		wrong = append(wrong, fmt.Errorf("%s needs %s and %s", l.name(clientCA), l.name(cert), l.name(key)))
	}
	return wrong
}

// Get returns the value of a setting by its flag.
// It is false for a setting that the command does not have, or that is wrong.
func (l *Loaded) Get(flag string) (Value, bool) {
	for _, v := range l.Values {
		if v.Flag == flag {
			return v, true
		}
	}
	return Value{}, false
}

func (l *Loaded) name(flag string) string {
	if v, ok := l.Get(flag); ok {
		return v.Name()
	}
	return byFlag(flag).Env
}

// Changed are the values that differ from the defaults.
// Values are compared after parsing: 60s is the default 1m.
func (l *Loaded) Changed() (changed []Value) {
	for _, v := range l.Values {
		value, _ := v.parse(v.Text) // Load has parsed both without an error
		fallback, _ := v.parse(v.fallback(l.dev))
		if !reflect.DeepEqual(value, fallback) {
			changed = append(changed, v)
		}
	}
	return changed
}

// clientVariables are variables of clients, which may run in the same environment.
var clientVariables = []string{"OJS_URL"}

// Unknown is a variable that begins with OJS_ and is not a setting.
// It is a warning and no error: an older server must start with the variables of a newer one.
type Unknown struct {
	Name    string
	Nearest string // the most similar variable of a setting, however far
}

// UnknownVariables finds the OJS_ variables that are not settings.
func UnknownVariables(environ []string) (unknown []Unknown) {
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		isSetting := slices.ContainsFunc(table, func(s Setting) bool { return s.Env == name })
		if !strings.HasPrefix(name, "OJS_") || isSetting || slices.Contains(clientVariables, name) {
			continue
		}
		nearest := slices.MinFunc(table, func(a, b Setting) int {
			return levenshtein.ComputeDistance(name, a.Env) - levenshtein.ComputeDistance(name, b.Env)
		})
		unknown = append(unknown, Unknown{name, nearest.Env})
	}
	return unknown
}
