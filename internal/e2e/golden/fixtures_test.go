package golden_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"github.com/tidwall/gjson"
)

// fixtures make what requests name: $active in a path or a body is the id of a new job that a worker runs. Within a case a name has
// one value. A name with a digit behind it, such as $job2, is another one of its kind. tenant is "" for an operator's.
var fixtures = map[string]func(m *maker) string{
	"job":       func(m *maker) string { return m.push(`"queue":"golden"`) },
	"scheduled": func(m *maker) string { return m.push(`"queue":"golden","scheduled_at":"2099-01-01T00:00:00Z"`) },
	"pending":   func(m *maker) string { return m.push(`"queue":"golden","pending":true`) },
	"active": func(m *maker) string {
		return m.active(`"retry":{"max_attempts":3,"initial_interval":"PT1H","jitter":false}`)
	},
	"retryable": func(m *maker) string {
		return m.nack(m.active(`"retry":{"max_attempts":3,"initial_interval":"PT1H","jitter":false}`))
	},
	"discarded": func(m *maker) string {
		return m.nack(m.active(`"retry":{"max_attempts":1,"on_exhaustion":"dead_letter"}`))
	},
	"completed": func(m *maker) string {
		id := m.active("")
		m.call("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`","result":{"total":3}}`)
		return id
	},
	"progressing": func(m *maker) string {
		id := m.active("")
		m.call("PUT", "/ojs/v1/jobs/"+id+"/progress", `{"progress":0.5,"message":"half"}`)
		m.call("PUT", "/ojs/v1/jobs/"+id+"/checkpoint", `{"state":{"page":7},"sequence":1}`)
		return id
	},
	"unique": func(m *maker) string { return m.push(`"queue":"golden","unique_key":"` + m.key() + `"`) },
	"limited": func(m *maker) string {
		key := m.name("limit")
		m.push(`"queue":"golden","rate_limit":{"key":"` + key + `","concurrency":1,"rate":{"limit":5,"period":"PT1H"}}`)
		return key
	},
	// Those of the filters of bulk calls are in queues of their own.
	"dead": func(m *maker) string {
		return m.nack(m.take("golden-dead", `,"retry":{"max_attempts":1,"on_exhaustion":"dead_letter"}`))
	},
	"finished": func(m *maker) string {
		id := m.take("golden-batch", "")
		m.call("POST", "/ojs/v1/workers/ack", `{"job_id":"`+id+`"}`)
		return id
	},
	"batch": func(m *maker) string { return m.push(`"queue":"golden-batch"`) },
	"cron": func(m *maker) string {
		name := m.name("cron")
		m.call("POST", "/ojs/v1/cron", `{"name":"`+name+`","expression":"0 0 1 1 *","type":"golden","args":[1]}`)
		return name
	},
	"workflow": func(m *maker) string {
		body := m.call("POST", "/ojs/v1/workflows", `{"type":"group","name":"golden","jobs":[{"type":"golden","args":[],"options":{"queue":"golden"}},{"type":"golden","args":[],"options":{"queue":"golden"}}]}`)
		for _, path := range []string{"workflow.id", "id"} {
			if id := gjson.Get(body, path).Str; id != "" {
				return id
			}
		}
		return ""
	},
	"webhook": func(m *maker) string { return m.webhook() },
	"delivery": func(m *maker) string {
		return gjson.Get(m.call("POST", "/ojs/v1/webhooks/"+m.webhook()+"/test", ``), "delivery_id").Str
	},
	"event": func(m *maker) string { return m.event(m.push(`"queue":"golden"`)) },
	"worker": func(m *maker) string {
		name := m.name("worker")
		m.call("POST", "/ojs/v1/workers/register", `{"worker_id":"`+name+`","queues":["golden"],"concurrency":2}`)
		return name
	},
	"queue": func(m *maker) string { name := m.name("queue"); m.push(`"queue":"` + name + `"`); return name },
	"idle": func(m *maker) string {
		m.tenant = ""
		name := m.name("idle")
		m.call("POST", "/ojs/v1/queues", `{"name":"`+name+`"}`)
		return name
	},
	"pool": func(m *maker) string {
		m.tenant = ""
		name := m.name("pool")
		m.call("PUT", "/ojs/v1/admin/pools/"+name, `{"queues":["`+name+`"]}`)
		return name
	},
	"schema": func(m *maker) string {
		m.tenant = ""
		name := m.name("schema")
		m.call("PUT", "/ojs/v1/admin/schemas/"+name+"/1", `{"schema":{"type":"array"},"enforce":false}`)
		return name
	},
	"uri": func(m *maker) string {
		m.tenant = ""
		uri := "urn:golden:" + m.name("uri")
		m.call("POST", "/ojs/v1/schemas", `{"uri":"`+uri+`","type":"`+m.name("typed")+`","version":1,"schema":{"type":"array"}}`)
		return uri
	},
	"freeid": func(m *maker) string { m.s.made++; return fmt.Sprintf("01890000-0000-7000-9000-%012d", m.s.made) },
	"owner":  func(m *maker) string { return m.name("owner") },
	"large":  func(m *maker) string { return strings.Repeat("a", m.large) },
	"new":    func(m *maker) string { return m.name("new") },
	"hook":   func(m *maker) string { return m.s.hook.URL },
}

// unknown are well-formed names of what does not exist, for each fixture that a path may name. What is not listed here is named by a UUID.
var unknown = map[string]string{
	"cron": "unknown", "worker": "unknown", "queue": "unknown", "idle": "unknown", "pool": "unknown", "schema": "unknown",
	"uri": "urn:golden:unknown", "limited": "unknown", "new": "unknown",
	"webhook": "sub_" + unknownID, "delivery": "del_" + unknownID, "event": "evt_" + unknownID,
}

const unknownID = "01890000-0000-7000-8000-000000000000"

func unknownOf(fixture string) string {
	if text, ok := unknown[fixture]; ok {
		return text
	}
	return unknownID
}

var fixtureName = expression(`\$[a-z]+[0-9]?`, "$")

// maker makes the fixtures of a case.
type maker struct {
	s       *server
	tenant  string
	large   int // the length of $large
	produce map[string]func(m *maker) string
	values  map[string]string // by name, with the digit
}

func (s *server) newMaker(tenant string) *maker {
	return &maker{s: s, tenant: tenant, produce: fixtures, values: map[string]string{}}
}

// fill puts the values of fixtures in the place of their names.
func (m *maker) fill(text string) string {
	return fixtureName.replace(text, func(name string) string {
		produce, known := m.produce[strings.TrimRight(name[1:], "0123456789")]
		if !known {
			return name
		}
		if _, made := m.values[name]; !made {
			was := m.tenant
			m.values[name] = produce(m)
			m.tenant = was
			require.NotEmpty(m.s.t, m.values[name], name)
		}
		return m.values[name]
	})
}

// key is a new unique key.
func (m *maker) key() string {
	m.s.made++
	return fmt.Sprintf("%064x", m.s.made)
}

// name is new on this server, which only this route or RPC uses.
func (m *maker) name(kind string) string {
	m.s.made++
	return fmt.Sprintf("%s-%d", kind, m.s.made)
}

// call must succeed; it returns the body.
func (m *maker) call(method, path, body string) string {
	m.s.t.Helper()
	headers := []string{"OJS-Version: 1.0"}
	if m.tenant != "" {
		headers = append(headers, "X-OJS-Tenant: "+m.tenant)
	}
	a := m.s.do(method, path, body, 0, headers...)
	require.Less(m.s.t, a.status, http.StatusBadRequest, "%s %s %s: %s", method, path, body, a.body)
	return a.body
}

func (m *maker) push(more string) string {
	m.s.t.Helper()
	return gjson.Get(m.call("POST", "/ojs/v1/jobs", `{"type":"golden","args":[{"n":1}],`+more+`}`), "job.id").Str
}

// active is a job that worker $owner has for an hour. Its queue has no other job, so that the fetch finds this one.
func (m *maker) active(more string) string {
	m.s.t.Helper()
	queue := m.name("active")
	if more != "" {
		more = "," + more
	}
	return m.take(queue, more)
}

// take pushes a job and fetches it. Whatever else waits in the queue is acknowledged.
func (m *maker) take(queue, more string) string {
	m.s.t.Helper()
	id := m.push(`"queue":"` + queue + `"` + more)
	for {
		got := m.call("POST", "/ojs/v1/workers/fetch", `{"queues":["`+queue+`"],"worker_id":"`+m.fill("$owner")+`","visibility_timeout_ms":3600000}`)
		taken := gjson.Get(got, "jobs.0.id").Str
		require.NotEmpty(m.s.t, taken, got)
		if taken == id {
			return id
		}
		m.call("POST", "/ojs/v1/workers/ack", `{"job_id":"`+taken+`"}`)
	}
}

func (m *maker) nack(id string) string {
	m.s.t.Helper()
	m.call("POST", "/ojs/v1/workers/nack", `{"job_id":"`+id+`","error":{"code":"boom","message":"it broke","details":{"line":7}}}`)
	return id
}

func (m *maker) webhook() string {
	m.s.t.Helper()
	return gjson.Get(m.call("POST", "/ojs/v1/webhooks", `{"url":"`+m.s.hook.URL+`/golden","events":["job.discarded"],"secret":"whsec_golden-golden-golden"}`), "id").Str
}

// event is that of the enqueue of a job, when it is published.
func (m *maker) event(job string) string {
	m.s.t.Helper()
	for start := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		if id := gjson.Get(m.call("GET", "/ojs/v1/events?job_id="+job, ""), "events.0.id").Str; id != "" {
			return id
		}
		require.Less(m.s.t, time.Since(start), waitFor)
	}
}

// settle waits until the node listens for notifications, which health shows, and until all that was written is published: lists and
// counts of events are then complete.
func (s *server) settle() {
	s.t.Helper()
	if !s.listening {
		s.listening = true
		for start := time.Now(); !strings.Contains(s.do("GET", "/readyz", "", 0).body, `"listener":"ok"`); time.Sleep(20 * time.Millisecond) {
			require.Less(s.t, time.Since(start), waitFor)
		}
	}
	for start := time.Now(); ; time.Sleep(2 * time.Millisecond) {
		var published bool
		err := s.db.QueryRow(s.t.Context(), `SELECT (SELECT coalesce(max(seq), 0) FROM ojs.events) <= (SELECT watermark FROM ojs.event_relay)`).Scan(&published)
		require.NoError(s.t, err)
		if published {
			return
		}
		require.Less(s.t, time.Since(start), waitFor)
	}
}

func connect(t *testing.T, database string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// written is a text with fixtures as the files have it.
func written(text string, m *maker) string {
	return fixtureName.replace(text, func(name string) string {
		switch _, made := m.values[name]; {
		case name == "$large":
			return fmt.Sprintf("<%d bytes>", m.large)
		case made:
			return "<" + name[1:] + ">"
		default:
			return name
		}
	})
}
