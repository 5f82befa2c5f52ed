package queue_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/internal/domaintest"
	"github.com/ojsd/ojsd/internal/job"
	"github.com/ojsd/ojsd/internal/queue"
)

// orderModel says which jobs a fetch may get, from what is stored before it.
type orderModel struct {
	*bundle

	r      *rand.Rand
	nodes  []*bundle
	queues []string
	paused map[string]bool
	limit  map[string]int // concurrency by queue
}

// waiting are the available jobs by queue and priority.
type rankOf struct {
	queue    string
	priority int16
}

// Random enqueues, priorities, pauses, limits, configurations and jobs that come back, on two nodes. Each fetch keeps the order of its
// list, then that of priorities; lanes of a priority take turns; and in a lane the job comes first that became available first. Nothing
// is lost, and nothing is left.
func TestFetchOrderOnTwoNodes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("Seed", seed), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			m := &orderModel{b, rand.New(rand.NewPCG(seed, 3)), []*bundle{b, b.node()}, []string{"q1", "q2", "q3"}, map[string]bool{}, map[string]int{}}
			for range 120 {
				m.step(m.nodes[m.r.IntN(2)])
			}
			for _, q := range m.queues {
				m.status(q, "active", m.nodes...)
				m.configureAll(q, `{}`)
			}
			m.paused, m.limit = map[string]bool{}, map[string]int{}
			for n := range 2 * m.Number(`SELECT count(*) + 1 FROM ojs.jobs WHERE state = 'available'`) {
				m.fetch(m.nodes[n%2], m.queues)
			}
			require.Zero(t, m.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'available'`))
		})
	}
}

func (m *orderModel) step(node *bundle) {
	r, queue := m.r, m.queues[m.r.IntN(3)]
	switch r.IntN(12) {
	case 0, 1, 2, 3:
		var jobs []*job.Job
		for range 1 + r.IntN(12) {
			j := domaintest.NewJob(m.queues[r.IntN(3)])
			j.Lane, j.Priority = job.Lane([]string{"", "t"}[r.IntN(2)], []string{"", "x"}[r.IntN(2)]), int16(r.IntN(3))
			j.Meta = fmt.Appendf(nil, `{"customer":%q}`, []string{"", "x"}[r.IntN(2)])
			jobs = append(jobs, j)
		}
		node.Enqueued(jobs...)
	case 4: // comes back behind the others
		if id, ok := m.any("active"); ok {
			_, err := node.Fail(m.T.Context(), job.Nack{JobID: id, Attempt: -1, Requeue: true})
			require.NoError(m.T, err)
		}
	case 5:
		if id, ok := m.any("active"); ok {
			_, err := node.Complete(m.T.Context(), job.Ack{JobID: id, Attempt: -1})
			require.NoError(m.T, err)
		}
	case 6:
		if id, ok := m.any("available"); ok {
			_, _, err := node.SetPriority(m.T.Context(), id, int16(r.IntN(3)))
			require.NoError(m.T, err)
		}
	case 7:
		m.paused[queue] = !m.paused[queue]
		m.status(queue, map[bool]string{true: "paused", false: "active"}[m.paused[queue]], m.nodes...)
	case 8:
		delete(m.limit, queue)
		switch r.IntN(3) {
		case 0:
			m.configureAll(queue, `{}`)
		case 1:
			m.configureAll(queue, `{"fairness":{"key":"meta.customer"}}`)
		case 2:
			m.limit[queue] = 1 + r.IntN(6)
			m.configureAll(queue, fmt.Sprintf(`{"concurrency":%d}`, m.limit[queue]))
		}
	default:
		list := slices.Clone(m.queues)
		r.Shuffle(3, func(i, j int) { list[i], list[j] = list[j], list[i] })
		m.fetch(node, list[:1+r.IntN(3)])
	}
}

func (m *orderModel) configureAll(queue, config string) {
	m.ConfigureQueue(queue, config)
	hear(m.T, queue, m.nodes...)
}

func (m *orderModel) any(state string) (id [16]byte, ok bool) {
	rows, err := m.Pool.Query(m.T.Context(), `SELECT id FROM ojs.jobs WHERE state = $1 ORDER BY id`, state)
	require.NoError(m.T, err)
	defer rows.Close()
	var ids [][16]byte
	for rows.Next() {
		require.NoError(m.T, rows.Scan(&id))
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return id, false
	}
	return ids[m.r.IntN(len(ids))], true
}

// stored are the available jobs of each queue and priority, in the order of their numbers.
func (m *orderModel) stored() (jobs map[rankOf][]queue.Place) {
	rows, err := m.Pool.Query(m.T.Context(), `SELECT queue, lane, priority, ready_seq FROM ojs.jobs WHERE state = 'available' ORDER BY ready_seq`)
	require.NoError(m.T, err)
	defer rows.Close()
	jobs = map[rankOf][]queue.Place{}
	for rows.Next() {
		var p queue.Place
		require.NoError(m.T, rows.Scan(&p.Queue, &p.Lane, &p.Priority, &p.Seq))
		jobs[rankOf{p.Queue, p.Priority}] = append(jobs[rankOf{p.Queue, p.Priority}], p)
	}
	return jobs
}

// fetch lets the node hear of all jobs, fetches, and checks what it has got.
func (m *orderModel) fetch(node *bundle, queues []string) {
	t, count := m.T, 1+m.r.IntN(12)
	stored := m.stored()
	if m.r.IntN(2) == 0 {
		node.NotifyAll()
	} else {
		for _, places := range stored {
			for _, p := range places {
				node.NotifyReady(p)
			}
		}
	}
	allowed := map[string]int{}
	for q, most := range m.limit {
		allowed[q] = max(0, most-m.Number(`SELECT count(*) FROM ojs.jobs WHERE state = 'active' AND queue = $1`, q))
	}
	jobs, err := node.Fetch(t.Context(), job.Fetch{Queues: queues, Count: count})
	require.NoError(t, err)
	got := map[rankOf][]queue.Place{}
	for _, j := range jobs {
		rank := rankOf{j.Queue, j.Priority}
		got[rank] = append(got[rank], queue.Place{Queue: j.Queue, Lane: j.Lane, Priority: j.Priority, Seq: j.ReadySeq.Int64})
	}
	require.True(t, slices.IsSortedFunc(jobs, func(a, b *job.Record) int {
		return cmp.Or(slices.Index(queues, a.Queue)-slices.Index(queues, b.Queue), int(b.Priority-a.Priority))
	}), "%v: queues %v, then priorities", queuesOf(jobs), queues)
	left := count
	for _, q := range queues {
		if m.paused[q] {
			continue
		}
		here := left
		if most, limited := allowed[q]; limited {
			here = min(here, most)
		}
		for priority := int16(2); priority >= 0; priority-- {
			rank := rankOf{q, priority}
			n := min(here, len(stored[rank]))
			require.Len(t, got[rank], n, "%s %d: of %v, for %d; %d from %v with allowed %v and pauses %v: %v", q, priority, stored[rank], here, count, queues, allowed, m.paused, got)
			m.requireTurns(stored[rank], got[rank], count, n == count)
			here, left = here-n, left-n
		}
	}
	require.Equal(t, count-left, len(jobs), "and nothing else")
}

// modelLanes are "", /x, t and t/x.
const modelLanes = 4

// requireTurns: of each lane the first jobs were taken. If all lanes have jobs left, none got two more than another one of its tenant, and so
// with tenants. A lane without jobs may have had its turns, as far as the node knew; and if the claim had taken jobs of other priorities
// before, the turns were taken for all of its slots.
func (m *orderModel) requireTurns(stored, got []queue.Place, count int, alone bool) {
	lanes, taken, byTenant, waits := map[string][]queue.Place{}, map[string]int{}, map[string]int{}, map[string]bool{}
	for _, p := range stored {
		lanes[p.Lane] = append(lanes[p.Lane], p)
	}
	for _, p := range got {
		require.Equal(m.T, lanes[p.Lane][taken[p.Lane]], p, "order in lane")
		taken[p.Lane]++
		byTenant[job.TenantOf(p.Lane)]++
	}
	left := 0
	for lane, all := range lanes {
		if taken[lane] < len(all) {
			waits[job.TenantOf(lane)] = true
			left++
		}
	}
	most := count
	if alone && left == modelLanes {
		most = 1
	}
	for lane, all := range lanes {
		for other := range lanes {
			if a, b := job.TenantOf(lane), job.TenantOf(other); a == b {
				require.True(m.T, taken[lane] == len(all) || taken[other]-taken[lane] <= most, "lane %q got %d and %q got %d, of %v", lane, taken[lane], other, taken[other], stored)
			} else {
				require.True(m.T, !waits[a] || byTenant[b]-byTenant[a] <= most, "tenant %q got %d and %q got %d, of %v: %v", a, byTenant[a], b, byTenant[b], stored, got)
			}
		}
	}
}
