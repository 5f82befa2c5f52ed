package schema

import (
	"maps"
	"slices"
	"sync"

	"github.com/ojsd/ojsd/internal/job"
)

// index is what a node knows of all schemas: their names, not their documents. It is replaced as a whole. It is read-only
// once it is stored, so checks need no lock. 10 000 schemas at most keep it small.
type index struct {
	version int64              // of ojs.schema_change
	types   map[string][]*Info // newest version first
	uris    map[string]*Info
}

// The infos point into list, which must not be changed after.
func newIndex(version int64, list []Info) *index {
	ix := &index{version: version, types: map[string][]*Info{}, uris: make(map[string]*Info, len(list))}
	for i := range list {
		info := &list[i]
		ix.types[info.Type] = append(ix.types[info.Type], info)
		ix.uris[info.URI] = info
	}
	for _, versions := range ix.types {
		slices.SortStableFunc(versions, func(a, b *Info) int { return compareVersions(b.Version, a.Version) })
	}
	return ix
}

// applies is the schema that the args of a job must satisfy: the one that the job names, or the newest of its type if that is
// enforced; nil: none. A name that is not registered is no way around the enforced one. docs/reference/schemas.md, Which
// schema applies has the rule. If a job names a URI and a version, the URI counts.
func (ix *index) applies(j *job.Job) *Info {
	// A registered URI counts whatever the type of the job.
	if j.Schema != "" {
		if info := ix.uris[j.Schema]; info != nil {
			return info
		}
	}
	versions := ix.types[j.Type]
	if len(versions) == 0 {
		return nil
	}
	if j.SchemaVersion != "" {
		for _, info := range versions {
			if info.Version == j.SchemaVersion {
				return info
			}
		}
	}
	// Only the newest version counts: an enforced one that a newer, not enforced one follows is not applied.
	if versions[0].Enforce {
		return versions[0]
	}
	return nil
}

// all lists the schemas by type, newest version first. The infos are shared and must not be changed.
func (ix *index) all() []*Info {
	list := make([]*Info, 0, len(ix.uris))
	for _, name := range slices.Sorted(maps.Keys(ix.types)) {
		list = append(list, ix.types[name]...)
	}
	return list
}

// maxCompiled bounds the documents, in bytes, whose compiled form a node keeps. A compiled schema has about thirty times the bytes of its
// document. One document of the largest size always fits.
const maxCompiled = 4 << 20

// compiledSchemas are the schemas that jobs were checked against. mu guards both fields; it is not held while a schema is
// compiled or checked.
type compiledSchemas struct {
	mu    sync.Mutex
	byKey map[compiledKey]*compiled
	bytes int
}

// compiledKey differs for a schema that was deleted and registered again. createdAt is in microseconds, the precision of
// the database.
type compiledKey struct {
	Key
	createdAt int64
}

func keyOf(info *Info) compiledKey { return compiledKey{info.Key, info.CreatedAt.UnixMicro()} }

// The result may be used after it was dropped here.
func (s *compiledSchemas) get(info *Info) *compiled {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byKey[keyOf(info)]
}

// put drops others, in no order, while there are too many. A schema that is in use may be dropped: its users keep it, and
// the next check compiles it again.
func (s *compiledSchemas) put(c *compiled) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, other := range s.byKey {
		if s.bytes+c.bytes <= maxCompiled {
			break
		}
		s.bytes -= other.bytes
		delete(s.byKey, key)
	}
	if s.byKey == nil {
		s.byKey = map[compiledKey]*compiled{}
	}
	// Two loads of a schema must not count its bytes twice.
	if s.byKey[keyOf(&c.info)] == nil {
		s.bytes += c.bytes
	}
	s.byKey[keyOf(&c.info)] = c
}

func (s *compiledSchemas) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byKey, s.bytes = nil, 0
}
