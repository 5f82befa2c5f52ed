package main

import (
	"github.com/alecthomas/kong"

	"github.com/ojsd/ojsd/internal/config"
)

// configCmd takes the flags of serve, so that users can check a command line before they use it.
type configCmd struct {
	settings
	Format string `enum:"text,json,markdown" default:"text" help:"text, json, or markdown for the page of the documentation."`
}

// Run prints what `ojsd serve` would read from the same flags and the same environment.
// It needs no database and connects to none. Secrets are masked.
func (c *configCmd) Run(k *kong.Context) error {
	// The page is made from the table alone, so a wrong setting of this environment does not matter.
	if c.Format == "markdown" {
		return config.WriteMarkdown(k.Stdout)
	}
	loaded, err := c.load()
	if err != nil {
		return err
	}
	if c.Format == "json" {
		return loaded.WriteJSON(k.Stdout)
	}
	return loaded.WriteText(k.Stdout)
}
