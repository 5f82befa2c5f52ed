package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Where a value comes from. A flag wins over the environment, the environment over the default.
const (
	FromDefault     = "default"
	FromEnvironment = "environment"
	FromFlag        = "flag"
)

// Input is what a user has given.
type Input struct {
	Settings []Setting         // those that the command has; it ignores the variables of others
	Flags    map[string]string // values by name of the flag
	Environ  []string          // NAME=value; a variable with an empty value counts as unset
	Dev      bool              // take the defaults of `ojsd dev`
	Database bool              // a database must be given
}

// Value is a setting that has been read.
type Value struct {
	Setting
	Text   string // as it was given
	Source string
}

// Name is what the user calls the setting: the flag, or the variable.
func (v Value) Name() string {
	if v.Source == FromFlag {
		return "--" + v.Flag
	}
	return v.Env
}

// Loaded is a configuration and how it came to be.
type Loaded struct {
	Config Config
	Values []Value

	dev bool
}

// Default is the configuration of a server for which nothing is set. It has no database.
func Default() Config {
	loaded, err := Load(Input{Settings: Table()})
	if err != nil {
		panic(err) // a mistake in the table
	}
	return loaded.Config
}

// Load reads and checks settings. Its error has a line for each that is wrong.
func Load(in Input) (*Loaded, error) {
	l := &Loaded{dev: in.Dev}
	environ := map[string]string{}
	for _, variable := range in.Environ {
		if name, value, _ := strings.Cut(variable, "="); value != "" {
			environ[name] = value
		}
	}
	var wrong []error
	for _, s := range in.Settings {
		v := Value{Setting: s, Text: s.fallback(in.Dev), Source: FromDefault}
		if text, ok := environ[s.Env]; ok {
			v.Text, v.Source = text, FromEnvironment
		}
		if text, ok := in.Flags[s.Flag]; ok {
			v.Text, v.Source = text, FromFlag
		}
		value, err := s.parse(v.Text)
		if err != nil {
			wrong = append(wrong, v.wrong())
			continue
		}
		if value != nil {
			field := reflect.ValueOf(&l.Config).Elem().FieldByIndex(s.index)
			field.Set(reflect.ValueOf(value).Convert(field.Type()))
		}
		l.Values = append(l.Values, v)
	}
	if url, ok := l.Get("database-url"); in.Database && ok && url.Text == "" {
		wrong = append(wrong, errNoDatabase)
	}
	wrong = append(wrong, l.conflicts()...)
	return l, errors.Join(wrong...)
}

var errNoDatabase = errors.New("no database: set DATABASE_URL or --database-url, such as postgres://user:password@host/name; `ojsd dev` brings its own")

func (s Setting) fallback(dev bool) string {
	if dev {
		return s.Dev
	}
	return s.Default
}

// wrong repeats a value only if it cannot hold a password.
func (v Value) wrong() error {
	err := fmt.Errorf("%s must be %s", v.Name(), v.Expected())
	if v.Secret || v.Kind == kindURL || v.Kind == kindPostgres {
		return err
	}
	return fmt.Errorf("%w; it is %q", err, v.Text)
}

// conflicts are settings that do not go together. Of two that do not, neither has been found wrong before.
func (l *Loaded) conflicts() (wrong []error) {
	c := l.Config
	if slices.Contains(c.Server.CORSOrigins, "*") && len(c.Server.APIKeys) > 0 {
		wrong = append(wrong, fmt.Errorf("%s must list the origins, not *, because API keys are set", l.name("cors-origins")))
	}
	_, hasCert := l.Get("grpc-tls-cert")
	_, hasKey := l.Get("grpc-tls-key")
	if !hasCert || !hasKey {
		return wrong
	}
	if (c.GRPC.TLSCert == "") != (c.GRPC.TLSKey == "") {
		given, missing := l.name("grpc-tls-cert"), l.name("grpc-tls-key")
		if c.GRPC.TLSCert == "" {
			given, missing = missing, given
		}
		wrong = append(wrong, fmt.Errorf("%s needs %s: set both or none", given, missing))
	}
	if c.GRPC.ClientCA != "" && c.GRPC.TLSCert == "" {
		wrong = append(wrong, fmt.Errorf("%s needs %s and %s", l.name("grpc-client-ca"), l.name("grpc-tls-cert"), l.name("grpc-tls-key")))
	}
	return wrong
}

// Get returns the value of a setting by its flag.
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
func (l *Loaded) Changed() (changed []Value) {
	for _, v := range l.Values {
		value, _ := v.parse(v.Text) // Load has read both
		fallback, _ := v.parse(v.fallback(l.dev))
		if !reflect.DeepEqual(value, fallback) {
			changed = append(changed, v)
		}
	}
	return changed
}
