package cron

import (
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // the machine may have no time zone database, or an old one
)

// zoneName rejects paths outside the database of time zones. The zones of right/ count leap seconds.
var zoneName = regexp.MustCompile(`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)+$`)

// Only names that exist are kept, so clients cannot fill it.
var zones sync.Map // by name; there are 600

// loadZone finds UTC, or an IANA zone by its full name. Abbreviations and offsets are ambiguous, and Local differs from node
// to node. Letter case counts (docs/reference/scheduling.md, Time zones). Two callers that load a zone at once both store
// it, which does no harm.
func loadZone(name string) (*time.Location, error) {
	if name == "" || name == "UTC" {
		return time.UTC, nil
	}
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location), nil
	}
	if !zoneName.MatchString(name) || strings.HasPrefix(name, "posix/") || strings.HasPrefix(name, "right/") {
		return nil, fmt.Errorf("%w must be UTC or an IANA name such as Europe/Berlin", ErrTimezone)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("%w is unknown; send UTC or an IANA name such as Europe/Berlin", ErrTimezone)
	}
	zones.Store(name, zone)
	return zone, nil
}
