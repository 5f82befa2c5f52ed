package main

import (
	"fmt"
	"log/slog"
	"net/url"
	"regexp"

	"github.com/alecthomas/kong"
)

// secretFlag are the names of flags whose values the log never shows; a new one that sounds like a secret is one.
var secretFlag = regexp.MustCompile(`key|secret|token|password|credential|authorization`)

var urlFlag = regexp.MustCompile(`url|dsn|proxy`)

// summary tells of every setting of a command, without secrets.
func summary(k *kong.Context) slog.Attr {
	var attrs []slog.Attr
	for _, flag := range k.Flags() {
		if flag.Name == "help" {
			continue
		}
		attrs = append(attrs, slog.String(flag.Name, shown(flag.Name, fmt.Sprint(k.FlagValue(flag)))))
	}
	return slog.Attr{Key: "attributes", Value: slog.GroupValue(attrs...)}
}

// shown is what may be seen of a setting.
func shown(name, value string) string {
	switch {
	case value == "" || value == "[]":
		return value
	case secretFlag.MatchString(name):
		return "(set)"
	case !urlFlag.MatchString(name):
		return value
	}
	// What stands before the host and behind the path may be a password.
	u, err := url.Parse(value)
	if err != nil || u.Host == "" {
		return "(set)"
	}
	return u.Scheme + "://" + u.Host + u.Path
}
