package app

import (
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/config"
)

// renamed are fields of the configuration whose names do not end with that of their setting.
var renamed = map[string]string{
	"VisibilityTimeout": "DefaultVisibility", "JobHeartbeatMinInterval": "JobHeartbeatInterval", "RateLimitPerSecond": "RateLimit",
	"MaxConnectionsPerClient": "MaxPerClient", "AllowQueryToken": "QueryToken", "EnableReset": "TestReset", "MaxSize": "MaxEnvelopeBytes", "MaxDepth": "MaxWorkflowDepth",
	"Overflow": "DropOldest",
}

// TestFromConfig: each setting that is a word, a number or a switch reaches the field of its name.
func TestFromConfig(t *testing.T) {
	t.Parallel()
	base := leaves("", reflect.ValueOf(FromConfig(config.Default(), slog.Default(), "")))
	tested := 0
	var visit func(c *config.Config, v reflect.Value)
	visit = func(c *config.Config, v reflect.Value) {
		for i := range v.NumField() {
			field, name := v.Field(i), v.Type().Field(i).Name
			before := reflect.ValueOf(field.Interface())
			switch field.Kind() {
			case reflect.Struct:
				if field.Addr().CanInterface() && field.Type() != reflect.TypeFor[time.Time]() {
					visit(c, field)
				}
				continue
			case reflect.Bool:
				field.SetBool(!field.Bool())
			case reflect.Int, reflect.Int32, reflect.Int64:
				field.SetInt(field.Int() + 1)
			case reflect.String:
				field.SetString(field.String() + "x")
				if name == "Overflow" {
					field.SetString("drop")
				}
			default:
				continue
			}
			var changed []string
			for path, value := range leaves("", reflect.ValueOf(FromConfig(*c, slog.Default(), ""))) {
				if base[path] != value {
					changed = append(changed, path[strings.LastIndexByte(path, '.')+1:])
				}
			}
			field.Set(before)
			if len(changed) == 0 {
				continue // a setting of the program
			}
			tested++
			want := name
			if renamed[name] != "" {
				want = renamed[name]
			}
			found := false
			for _, c := range changed {
				found = found || strings.HasSuffix(c, want)
			}
			require.True(t, found, "%s sets %v", name, changed)
		}
	}
	c := config.Default()
	visit(&c, reflect.ValueOf(&c).Elem())
	require.Greater(t, tested, 30)
}

// leaves are the words, numbers and switches of a struct, by path.
func leaves(path string, v reflect.Value) map[string]any {
	found := map[string]any{}
	for i := range v.NumField() {
		field, at := v.Field(i), path+"."+v.Type().Field(i).Name
		switch field.Kind() {
		case reflect.Struct:
			for p, value := range leaves(at, field) {
				found[p] = value
			}
		case reflect.Bool:
			found[at] = field.Bool()
		case reflect.Int, reflect.Int32, reflect.Int64:
			found[at] = field.Int()
		case reflect.String:
			found[at] = field.String()
		default:
		}
	}
	return found
}
