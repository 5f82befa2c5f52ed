package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/observe"
)

// settings are the settings of a command. Its flags are made from the table in internal/config. kong stores only their texts;
// package config parses and checks the values of flags and variables.
// kong finds the flags in Plugins, a struct that is made at run time.
type settings struct {
	kong.Plugins

	table []config.Setting
	dev   bool // with the defaults of `ojsd dev`
}

func newSettings(table []config.Setting, dev bool) settings {
	// Fields have names by number, because kong takes the names of flags from the tags.
	var fields []reflect.StructField
	for i, s := range table {
		field := reflect.StructField{Name: fmt.Sprintf("Flag%d", i), Type: reflect.TypeFor[textFlag]()}
		standard := s.Default
		if dev {
			standard = s.Dev
		}
		help := fmt.Sprintf("%s (%s) ($%s)", strings.TrimSuffix(s.Help, "."), cmp.Or(standard, "empty"), s.Env)
		field.Tag = reflect.StructTag(fmt.Sprintf(`name:%q group:%q placeholder:%q help:%q`, s.Flag, s.Area+":", strings.ToUpper(s.Kind), help))
		if s.Kind == "bool" {
			field.Type, field.Tag = reflect.TypeFor[boolFlag](), field.Tag+` negatable:""`
		}
		fields = append(fields, field)
	}
	flags := reflect.New(reflect.StructOf(fields)).Interface() // a pointer to a struct with a field for each flag
	return settings{Plugins: kong.Plugins{flags}, table: table, dev: dev}
}

// given are the flags of the command line.
// A flag that was not given is absent, even if it has the value of its default.
func (s *settings) given() map[string]string {
	flags := map[string]string{}
	for _, plugin := range s.Plugins {
		fields := reflect.ValueOf(plugin).Elem()
		for i, setting := range s.table {
			flag, isText := reflect.TypeAssert[textFlag](fields.Field(i))
			if !isText {
				onOff, _ := reflect.TypeAssert[boolFlag](fields.Field(i))
				flag = onOff.textFlag
			}
			if flag.given {
				flags[setting.Flag] = flag.text
			}
		}
	}
	return flags
}

// load reads the settings. `ojsd dev`, and commands whose log is for people, have the defaults of `ojsd dev`.
// An error has a line for each wrong setting and makes the exit code 2.
func (s *settings) load() (*config.Loaded, error) { return s.read(config.Input{}) }

// loadWithDatabase is load for commands that need a database.
func (s *settings) loadWithDatabase() (*config.Loaded, error) {
	return s.read(config.Input{Database: true})
}

func (s *settings) read(in config.Input) (*config.Loaded, error) {
	in.Settings, in.Flags, in.Environ, in.Dev = s.table, s.given(), os.Environ(), s.dev
	loaded, err := config.Load(in)
	if err != nil {
		return nil, wrongCall{err}
	}
	return loaded, nil
}

// textFlag is the value of a flag as it was given.
// given tells an empty value from an absent flag.
type textFlag struct {
	text  string
	given bool
}

// Decode is called by kong.
func (f *textFlag) Decode(ctx *kong.DecodeContext) error {
	f.given = true
	return ctx.Scan.PopValueInto("value", &f.text)
}

// boolFlag may stand without a value.
type boolFlag struct{ textFlag }

// Decode is called by kong, which turns --no-x into --x=false.
func (f *boolFlag) Decode(ctx *kong.DecodeContext) error {
	f.text, f.given = "true", true
	if ctx.Scan.Peek().Type != kong.FlagValueToken {
		return nil
	}
	token, err := ctx.Scan.PopValue("bool")
	f.text = fmt.Sprint(token.Value)
	return err
}

// IsBool lets kong accept the flag without a value.
func (*boolFlag) IsBool() bool { return true }

// level is the log level.
func level(c config.Logging) slog.Level {
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.Level)) // Load has checked it
	return level
}

func newLogger(k *kong.Context, c config.Logging) *slog.Logger {
	return observe.NewLogger(k.Stderr, c.Format, level(c))
}
