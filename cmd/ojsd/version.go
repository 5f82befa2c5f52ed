package main

import (
	"cmp"
	"fmt"
	"runtime/debug"

	"github.com/alecthomas/kong"
)

// version is set by the Makefile: -ldflags "-X main.version=v1.2.3".
var version string

type versionCmd struct{}

// Run prints one line, such as "ojsd v1.2.3 (commit 0123456789ab, go1.26.0)".
func (versionCmd) Run(k *kong.Context) error { return printVersion(k.Kong) }

// versionFlag is the command as a flag.
type versionFlag bool

// BeforeReset is called by kong before it looks for a command, which need not be there.
func (versionFlag) BeforeReset(k *kong.Kong) error {
	if err := printVersion(k); err != nil {
		return err
	}
	k.Exit(0)
	return nil
}

func printVersion(k *kong.Kong) error {
	info := buildInfo()
	_, err := fmt.Fprintf(k.Stdout, "ojsd %s (commit %s, %s)\n", buildVersion(info), commit(info), info.GoVersion)
	return err
}

// buildInfo is empty for a binary that was built without modules.
func buildInfo() *debug.BuildInfo {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info
	}
	return &debug.BuildInfo{}
}

// currentVersion is the version that the server reports.
func currentVersion() string { return buildVersion(buildInfo()) }

// buildVersion is the version of the linker flag, or the module version of a `go install …@v1.2.3`.
func buildVersion(info *debug.BuildInfo) string { return cmp.Or(version, info.Main.Version, "(devel)") }

// commit is the commit of the build, with a "+" if files were changed.
func commit(info *debug.BuildInfo) string {
	revision, modified := "unknown", ""
	for _, setting := range info.Settings {
		switch setting.Key {
		case "vcs.revision":
			// Twelve digits are enough to find a commit.
			revision = setting.Value[:min(12, len(setting.Value))]
		case "vcs.modified":
			if setting.Value == "true" {
				modified = "+"
			}
		}
	}
	return revision + modified
}
