package config

import (
	"net/url"
	"reflect"
	"strings"
	"time"
)

// Setting is one setting of Config.
// It is made from the tags of a field and never changes.
type Setting struct {
	Area    string // title of the group
	Env     string // the variable
	Flag    string // without the dashes
	Kind    string // selects the parser
	Default string
	Dev     string // the default of `ojsd dev`
	Help    string
	Secret  bool

	low, high string // range
	values    []string
	schemes   []string
	pattern   string
	index     []int // of the field in Config
}

// It is made when the program starts, so a wrong tag ends every command at once.
var table = makeTable()

// Table returns all settings, in the order of the documentation.
func Table() []Setting { return table }

// Pick returns the settings with these flags, for commands with few settings.
// A flag that no setting has panics: it is a mistake of the program.
func Pick(flags ...string) (picked []Setting) {
	for _, flag := range flags {
		picked = append(picked, byFlag(flag))
	}
	return picked
}

func byFlag(flag string) Setting {
	for _, s := range table {
		if s.Flag == flag {
			return s
		}
	}
	panic("config: no setting has the flag " + flag)
}

// Fields of areas must all be settings.
func makeTable() (all []Setting) {
	root := reflect.TypeFor[Config]()
	for i := range root.NumField() {
		area := root.Field(i)
		for j := range area.Type.NumField() {
			s := makeSetting(area.Type.Field(j))
			s.Area, s.index = area.Tag.Get("area"), []int{i, j}
			all = append(all, s)
		}
	}
	// The order is that of the fields, and so that of the documentation and of `ojsd config`.
	return all
}

// The flag follows from the variable, so the two never differ.
func makeSetting(field reflect.StructField) Setting {
	tag := field.Tag.Get
	s := Setting{
		Env: tag("env"), Kind: tag("kind"), Default: tag("default"), Dev: tag("default"), Help: tag("help"), Secret: tag("secret") != "", pattern: tag("pattern"),
	}
	s.Flag = strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.Env, "OJS_")), "_", "-")
	// Lookup, because an empty default for dev differs from none.
	if dev, ok := field.Tag.Lookup("dev"); ok {
		s.Dev = dev
	}
	if tag("values") != "" {
		s.values = strings.Split(tag("values"), "|")
	}
	if tag("schemes") != "" {
		s.schemes = strings.Split(tag("schemes"), "|")
	}
	// Both are parsed when a value is compared with them, in the unit of the kind.
	s.low, s.high, _ = strings.Cut(tag("range"), "..")
	// The tag kind is only for texts that need another check than a pattern.
	if s.Kind == "" {
		s.Kind = kindOf(field.Type, s)
	}
	return s
}

// A new type of a field needs a case here, in parse and in Expected.
func kindOf(t reflect.Type, s Setting) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return kindDuration
	case reflect.TypeFor[[]time.Duration]():
		return kindDurations
	case reflect.TypeFor[Size]():
		return kindSize
	case reflect.TypeFor[*url.URL]():
		return kindURL
	case reflect.TypeFor[[]Key]():
		return kindKeys
	case reflect.TypeFor[Destinations]():
		return kindDestinations
	case reflect.TypeFor[[]string]():
		return kindList
	}
	switch {
	case t.Kind() == reflect.Bool:
		return kindBool
	case t.Kind() == reflect.Int || t.Kind() == reflect.Int64:
		return kindInt
	case t.Kind() == reflect.String && s.values != nil:
		return kindChoice
	case t.Kind() == reflect.String:
		return kindText
	}
	panic("config: no kind of setting is a " + t.String())
}
