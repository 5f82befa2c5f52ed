package config

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
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

// table is made when the program starts, so a wrong tag ends every command at once. fixed are the fields without env.
var table, fixed = makeTable()

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

// makeTable has the order of the fields, and so that of the documentation and of `ojsd config`.
func makeTable() (settings, fixed []Setting) {
	root := reflect.TypeFor[Config]()
	for i := range root.NumField() {
		area := root.Field(i)
		for j := range area.Type.NumField() {
			s := makeSetting(area.Type.Field(j))
			s.Area, s.index = area.Tag.Get("area"), []int{i, j}
			switch {
			case s.Env != "":
				settings = append(settings, s)
			case s.Help != "":
				panic("config: " + area.Type.Field(j).Name + " of " + s.Area + " has a help and no env")
			default:
				fixed = append(fixed, s)
			}
		}
	}
	return settings, fixed
}

// makeSetting lets the flag follow from the variable, so the two never differ.
func makeSetting(field reflect.StructField) Setting {
	tag := field.Tag.Get
	s := Setting{
		Env: tag("env"), Kind: tag("kind"), Default: tag("default"), Dev: tag("default"), Help: tag("help"),
		Secret: tag("secret") != "", pattern: tag("pattern"),
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

// kindOf needs a case for a new type of a field, as do parse and Expected.
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

// Kinds of settings.
// They are words of the documentation, too.
const (
	kindBool         = "bool"
	kindInt          = "int"
	kindDuration     = "duration"
	kindDurations    = "list of durations"
	kindSize         = "size"
	kindText         = "text"
	kindList         = "list"
	kindChoice       = "choice"
	kindURL          = "url"
	kindPostgres     = "postgres"
	kindAddress      = "address"
	kindFile         = "file"
	kindKeys         = "list of keys"
	kindDestinations = "list of networks and hosts"
)

// errWrong says that a value is wrong and not why. Whatever parse returns, no cause is shown, because it could repeat a
// password; Expected describes valid values.
var errWrong = errors.New("wrong value")

// Expected completes the sentence "… must be".
func (s Setting) Expected() string {
	switch s.Kind {
	// 1, t and TRUE are accepted as well.
	case kindBool:
		return "true or false"
	case kindInt:
		return fmt.Sprintf("a whole number from %s to %s", s.low, s.high)
	case kindDuration:
		return fmt.Sprintf("a duration from %s to %s, such as 30s, 15m or 7d", s.low, s.high)
	case kindDurations:
		return fmt.Sprintf("durations from %s to %s, such as 30s, 15m or 7d, separated by commas", s.low, s.high)
	case kindSize:
		return fmt.Sprintf("a number of bytes from %s to %s, such as 65536, 64KiB or 1MiB", s.low, s.high)
	case kindChoice:
		return strings.Join(s.values[:len(s.values)-1], ", ") + " or " + s.values[len(s.values)-1]
	case kindURL:
		if s.schemes != nil {
			return "a URL such as http://host:3128; its scheme is " + strings.Join(s.schemes[:len(s.schemes)-1],
				", ") + " or " + s.schemes[len(s.schemes)-1]
		}
		return "a URL such as https://host"
	// pgx also accepts key=value texts.
	case kindPostgres:
		return "the URL of a Postgres database, such as postgres://user:password@host:5432/name, with special characters of the password percent-encoded"
	case kindAddress:
		return strings.Join(append([]string{"an address such as :8080 or 127.0.0.1:8080, with a port from 0 to 65535"}, s.values...),
			", or ")
	case kindKeys:
		return "32 bytes in base64, as `openssl rand -base64 32` prints them; while the key changes two of them, NEW,OLD"
	case kindDestinations:
		return "networks such as 10.0.0.0/8 and host names such as hooks.internal, without scheme or port, separated by commas"
	case kindList:
		return "a list without empty entries, separated by commas"
	case kindText:
		return "text that matches " + s.pattern
	}
	return "a file name"
}

// parse reads a text. An empty text is the zero value of kinds that allow it: a number or a choice has no empty value; a list, a text
// without pattern, a URL and a file have.
// The result has a type that converts to that of the field; nil leaves the field zero.
func (s Setting) parse(text string) (any, error) {
	if text == "" {
		switch s.Kind {
		case kindBool, kindInt, kindDuration, kindSize, kindChoice, kindAddress:
			return nil, errWrong
		}
		return nil, wrongIf(s.pattern != "")
	}
	switch s.Kind {
	case kindBool:
		return strconv.ParseBool(text)
	case kindInt, kindDuration, kindSize:
		return s.number(text)
	case kindDurations:
		return parseList(text, s.duration)
	case kindList:
		return parseList(text, notEmpty)
	case kindChoice:
		return text, wrongIf(!slices.Contains(s.values, text))
	case kindText:
		return text, wrongIf(s.pattern != "" && !regexp.MustCompile(s.pattern).MatchString(text))
	case kindURL:
		return s.url(text)
	case kindPostgres:
		_, err := pgx.ParseConfig(text)
		return text, wrongIf(err != nil)
	case kindAddress:
		// For example off.
		if slices.Contains(s.values, text) {
			return text, nil
		}
		return text, checkAddress(text)
	case kindKeys:
		return parseList(text, parseKey)
	case kindDestinations:
		return parseDestinations(text)
	}
	return text, nil
}

func wrongIf(wrong bool) error {
	if wrong {
		return errWrong
	}
	return nil
}

// number reads a value that has a range.
// It also reads the range, from the tag; a wrong one is a mistake of the program, found at the first start.
func (s Setting) number(text string) (int64, error) {
	n, err := s.count(text)
	if err != nil {
		return 0, errWrong
	}
	if s.low == "" { // a fixed value
		return n, nil
	}
	low, errLow := s.count(s.low)
	high, errHigh := s.count(s.high)
	// Default, which tests call, compares every default with its range, so a wrong one is found there.
	if errLow != nil || errHigh != nil {
		panic("config: the range of " + s.Env + " is wrong")
	}
	return n, wrongIf(n < low || n > high)
}

func (s Setting) count(text string) (int64, error) {
	switch s.Kind {
	case kindSize:
		return parseSize(text)
	case kindDuration, kindDurations:
		d, err := parseDuration(text)
		return int64(d), err
	}
	return strconv.ParseInt(text, 10, 64)
}

// duration is one entry of a list.
func (s Setting) duration(text string) (time.Duration, error) {
	n, err := s.number(text)
	return time.Duration(n), err
}

// parseDuration reads a Go duration, optionally with days in front: 30s, 7d, 1d12h.
// time.ParseDuration has no days.
func parseDuration(text string) (time.Duration, error) {
	days, rest, found := strings.Cut(text, "d")
	if !found {
		return time.ParseDuration(text)
	}
	// 16 bits are 65 535 days, which a time.Duration holds.
	n, err := strconv.ParseUint(days, 10, 16)
	if err != nil {
		return 0, errWrong
	}
	d := time.Duration(n) * 24 * time.Hour
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	return d + more, errors.Join(err, wrongIf(more < 0))
}

// parseSize reads bytes, with or without a unit.
// 32 bits of a number with a unit cannot overflow.
func parseSize(text string) (int64, error) {
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if number, found := strings.CutSuffix(text, unit); found {
			n, err := strconv.ParseInt(number, 10, 32)
			return n << (10 * (i + 1)), err
		}
	}
	return strconv.ParseInt(text, 10, 64)
}

// parseList refuses the list for one bad entry. Blanks around entries are ignored.
func parseList[T any](text string, parse func(string) (T, error)) (list []T, err error) {
	for entry := range strings.SplitSeq(text, ",") {
		value, err := parse(strings.TrimSpace(entry))
		if err != nil {
			return nil, err
		}
		list = append(list, value)
	}
	return list, nil
}

func notEmpty(text string) (string, error) { return text, wrongIf(text == "") }

// url refuses one without a scheme: url.Parse takes host:port for a scheme.
func (s Setting) url(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme == "" || u.Host == "" || s.schemes != nil && !slices.Contains(s.schemes, u.Scheme) {
		return nil, errWrong
	}
	return u, nil
}

// checkAddress takes an empty host, for all interfaces. Port 0 lets the system choose.
func checkAddress(text string) error {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return errWrong
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return wrongIf(err != nil)
}

// parseKey accepts both alphabets, with and without padding, because tools differ.
func parseKey(text string) (Key, error) {
	for _, encoding := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
		if key, err := encoding.DecodeString(text); err == nil && len(key) == 32 {
			return key, nil
		}
	}
	return nil, errWrong
}

// parseDestinations does not look up host names; they are compared when a webhook is sent.
func parseDestinations(text string) (d Destinations, err error) {
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		if !strings.Contains(entry, "/") {
			if entry == "" || strings.ContainsAny(entry, " @") || strings.Contains(entry, ":") && net.ParseIP(entry) == nil {
				return d, errWrong
			}
			d.Hosts = append(d.Hosts, entry)
			continue
		}
		// Bits behind the prefix are not refused; they do not matter when addresses are compared.
		network, err := netip.ParsePrefix(entry)
		if err != nil || network.Addr().Is4In6() { // the latter would match no address
			return d, errWrong
		}
		d.Networks = append(d.Networks, network)
	}
	return d, nil
}
