package fakeserver

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // the machine may have no database of time zones

	"github.com/ojsd/ojsd/ojs"
)

var (
	cronName  = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{0,254}$`)
	cronNames = []string{
		"name", "expression", "cron", "schedule", "timezone", "type", "args", "meta", "options", "job_template", "queue",
		"overlap_policy", "enabled", "description",
	}
	cronShown   = []string{"id", "status", "last_run_at", "next_run_at", "run_count", "created_at", "updated_at"}
	descriptors = map[string]string{
		"@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
		"@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
	}
	zoneName = regexp.MustCompile(`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)+$`)
)

// cron is a definition with all members in their places.
type cron struct {
	fields   map[string]json.RawMessage // as they are shown
	template json.RawMessage            // of its jobs
	created  time.Time
	runs     int
	enabled  bool
	last     time.Time
	next     time.Time // zero: it is paused
}

// readCron reads a cron on top of what it was before: nothing, or the current one, for a patch. name is that of the path.
func readCron(body json.RawMessage, name string, old *cron, now time.Time) (*cron, *ojs.Error) {
	p := &problems{}
	r, ok := p.open(body)
	if !ok {
		return nil, p.first
	}
	r.others(ojs.ErrInvalidRequest, slices.Concat(cronNames, cronShown, optionNames)...)
	c := &cron{fields: map[string]json.RawMessage{}, created: now, enabled: true}
	if old != nil {
		*c = *old
		c.fields = maps.Clone(old.fields)
	}
	sent := r.pick("name")
	text := r.text(sent, "a cron name of lower-case letters, digits, - and .", cronName.MatchString)
	if sent.value == nil && name == "" || name != "" && sent.value != nil && text != name {
		r.refuse(sent, "a cron name, and that of the path if there is one")
	}
	if name == "" {
		name = text
	}
	c.fields["name"] = quoted(name)
	c.readSchedule(r, now)
	if m := r.pick("overlap_policy"); m.value != nil {
		r.text(m, "skip, allow, cancel_previous or enqueue", among("skip", "allow", "cancel_previous", "cancel", "enqueue"))
		c.fields["overlap_policy"] = m.value
	}
	if m := r.pick("enabled"); m.value != nil {
		c.enabled = r.boolean(m)
	}
	if m := r.pick("description"); m.value != nil {
		r.text(m, "a string of at most 4096 bytes", func(text string) bool { return len(text) <= 4096 })
		c.fields["description"] = m.value
	}
	if p.first != nil {
		return nil, p.first
	}
	return c, c.readTemplate(r, now)
}

// readTemplate takes the parts of the job from the top level, else from job_template.
func (c *cron) readTemplate(r reader, now time.Time) *ojs.Error {
	inner := reader{problems: r.problems, objects: []map[string]json.RawMessage{{}}, kind: r.kind}
	if in, there := r.inner(r.pick("job_template")); there {
		inner = in
	}
	options := map[string]json.RawMessage{}
	_ = json.Unmarshal(c.fields["options"], &options) // those of the current cron, if there are some
	if queue := r.pick("queue"); queue.value != nil {
		options["queue"] = queue.value
	}
	for _, from := range []reader{inner, r} {
		for _, name := range optionNames {
			if m := from.pick(name); m.value != nil && name != "meta" && name != "metadata" && name != "queue" {
				options[name] = m.value
			}
		}
		m := from.pick("options")
		members, ok := objectOf(m.value)
		if m.value != nil && !ok {
			r.refuse(m, "an object")
		}
		maps.Copy(options, members)
		for _, name := range []string{"type", "args", "meta"} {
			if m := from.pick(name); m.value != nil {
				c.fields[name] = m.value
			}
		}
	}
	if c.fields["args"] == nil {
		c.fields["args"] = json.RawMessage("[]")
	}
	job := object{"args": c.fields["args"]}
	for _, name := range []string{"type", "meta"} {
		if value := c.fields[name]; value != nil {
			job[name] = value
		}
	}
	text, err := json.Marshal(options)
	if err == nil {
		c.fields["options"], job["options"] = text, json.RawMessage(text)
		c.template, err = json.Marshal(job)
	}
	if err != nil {
		r.add(invalidPayload("body", "%v", err))
	}
	if r.first != nil {
		return r.first
	}
	_, refused := readJob(c.template, now)
	return refused
}

func (c *cron) readSchedule(r reader, now time.Time) {
	if m := r.pick("timezone"); m.value != nil {
		text, isText := textOf(m.value)
		if text != "" && text != "UTC" {
			_, err := time.LoadLocation(text)
			isText = isText && err == nil && zoneName.MatchString(text) && !strings.HasPrefix(text, "posix/") &&
				!strings.HasPrefix(text, "right/")
		}
		if !isText {
			r.refuse(m, "UTC or an IANA name such as Europe/Berlin")
		}
		c.fields["timezone"] = m.value
	}
	m := r.pick("expression", "cron", "schedule")
	if m.value == nil && c.fields["expression"] != nil {
		return
	}
	text, isText := textOf(m.value)
	every, isEvery := strings.CutPrefix(strings.Trim(text, " \t"), "@every")
	if !isText || isEvery && !validEvery(every) || nextRun(text, time.UTC, now).IsZero() {
		r.refuseAs(ojs.ErrInvalidCron, m, "five or six fields, a descriptor such as @daily, or @every 90s, that fires within 10 years")
	}
	c.fields["expression"] = m.value
}

// field is a field of an expression.
type field struct {
	low, high int
	names     string // three letters each
}

const (
	monthNames = "JANFEBMARAPRMAYJUNJULAUGSEPOCTNOVDEC"
	dayNames   = "SUNMONTUEWEDTHUFRISAT"
)

var cronFields = []field{{0, 59, ""}, {0, 59, ""}, {0, 23, ""}, {1, 31, ""}, {1, 12, monthNames}, {0, 7, dayNames}}

// validEvery reads what stands behind @every.
func validEvery(text string) bool {
	amount := strings.TrimLeft(text, " \t")
	d, err := time.ParseDuration(amount)
	return err == nil && strings.Trim(amount, "0123456789.hms") == "" && amount != text && d <= maxReach
}

// parseExpression splits an expression into its six fields, in capitals, by docs/reference/scheduling.md, Expressions.
func parseExpression(text string) (texts []string, ok bool) {
	text = strings.Trim(text, " \t")
	if len(text) > 1024 {
		return nil, false
	}
	if strings.HasPrefix(text, "@") {
		text = descriptors[text]
	}
	texts = strings.FieldsFunc(text, func(c rune) bool { return c == ' ' || c == '\t' })
	if len(texts) == 5 {
		texts = append([]string{"0"}, texts...)
	}
	if len(texts) != 6 {
		return nil, false
	}
	for i, f := range cronFields {
		for item := range strings.SplitSeq(strings.ToUpper(texts[i]), ",") {
			days := i == 3 || i == 5
			if days && item == "?" && texts[i] == "?" || i == 3 && validMonthDay(item) || i == 5 && f.validWeekday(item) {
				continue
			}
			if _, ok := f.values(item); !ok {
				return nil, false
			}
		}
	}
	for i := range texts {
		texts[i] = strings.ToUpper(texts[i])
	}
	return texts, true
}

const maxReach = 3653 * 24 * time.Hour

// values are the first and the last of an item, and its step.
func (f field) values(item string) (spans [3]int, ok bool) {
	span, stepText, stepped := strings.Cut(item, "/")
	low, high, step := f.low, f.high, 1
	if span != "*" {
		first, last, ranged := strings.Cut(span, "-")
		if low, ok = f.value(first); !ok {
			return spans, false
		}
		if high = low; ranged {
			if high, ok = f.value(last); !ok {
				return spans, false
			}
		} else if stepped {
			high = f.high
		}
	}
	if stepped {
		var err error
		if step, err = strconv.Atoi(stepText); err != nil || step < 1 || strings.Trim(stepText, "0123456789") != "" {
			return spans, false
		}
	}
	return [3]int{low, high, step}, low <= high
}

func (f field) value(text string) (int, bool) {
	if len(text) == 3 && f.names != "" {
		if i := strings.Index(f.names, text); i >= 0 && i%3 == 0 {
			return f.low + i/3, true
		}
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && strings.Trim(text, "0123456789") == "" && n >= f.low && n <= f.high
}

var monthDay = regexp.MustCompile(`^(L|LW|L-([1-9]|[12][0-9]|30)|([1-9]|[12][0-9]|3[01])W)$`)

func validMonthDay(item string) bool { return monthDay.MatchString(item) }

// validWeekday takes 5L and FRI#3.
func (f field) validWeekday(item string) bool {
	if day, last := strings.CutSuffix(item, "L"); last {
		_, ok := f.value(day)
		return ok
	}
	day, n, numbered := strings.Cut(item, "#")
	_, ok := f.value(day)
	return numbered && ok && len(n) == 1 && n >= "1" && n <= "5"
}

// matches reports whether a field takes a value.
func (f field) matches(text string, n int) bool {
	for item := range strings.SplitSeq(text, ",") {
		if v, ok := f.values(item); ok && n >= v[0] && n <= v[1] && (n-v[0])%v[2] == 0 {
			return true
		}
	}
	return false
}

// matchesDay follows both fields of days: if both restrict, one is enough.
func matchesDay(texts []string, day time.Time) bool {
	free := func(text string) bool { return text[0] == '*' || text[0] == '?' }
	inMonth, inWeek := texts[3] == "?" || monthDayMatches(texts[3], day), texts[5] == "?" || weekdayMatches(texts[5], day)
	if !free(texts[3]) && !free(texts[5]) {
		return inMonth || inWeek
	}
	return inMonth && inWeek
}

func monthDayMatches(text string, day time.Time) bool {
	last := time.Date(day.Year(), day.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day()
	nearest := func(n int) int { // the Monday to Friday nearest to day n, in the month
		switch time.Date(day.Year(), day.Month(), n, 0, 0, 0, 0, time.UTC).Weekday() {
		case time.Saturday:
			if n == 1 {
				return 3
			}
			return n - 1
		case time.Sunday:
			if n == last {
				return n - 2
			}
			return n + 1
		}
		return n
	}
	for item := range strings.SplitSeq(text, ",") {
		back, isBack := strings.CutPrefix(item, "L-")
		near, isNear := strings.CutSuffix(item, "W")
		n, err := strconv.Atoi(back)
		wanted, nearErr := strconv.Atoi(near)
		switch {
		case item == "L" && day.Day() == last, item == "LW" && day.Day() == nearest(last), isBack && err == nil && day.Day() == last-n,
			isNear && nearErr == nil && wanted <= last && day.Day() == nearest(wanted), cronFields[3].matches(item, day.Day()):
			return true
		}
	}
	return false
}

func weekdayMatches(text string, day time.Time) bool {
	f, weekday := cronFields[5], int(day.Weekday())
	is := func(name string) bool {
		n, ok := f.value(name)
		return ok && n%7 == weekday
	}
	for item := range strings.SplitSeq(text, ",") {
		name, isLast := strings.CutSuffix(item, "L")
		nth, number, isNth := strings.Cut(item, "#")
		switch {
		case f.matches(item, weekday), weekday == 0 && f.matches(item, 7),
			isLast && is(name) && day.AddDate(0, 0, 7).Month() != day.Month(),
			isNth && is(nth) && strconv.Itoa((day.Day()-1)/7+1) == number:
			return true
		}
	}
	return false
}

// nextRun is the first time of an expression after an instant; zero: there is none within 10 years. Of local times that a change of the
// clock leaves out or repeats it knows nothing.
func nextRun(expression string, zone *time.Location, after time.Time) time.Time {
	expression = strings.Trim(expression, " \t")
	if amount, every := strings.CutPrefix(expression, "@every"); every {
		d, err := time.ParseDuration(strings.TrimLeft(amount, " \t"))
		if err != nil {
			return time.Time{}
		}
		return after.Add(max(d, time.Second))
	}
	texts, ok := parseExpression(expression)
	if !ok {
		return time.Time{}
	}
	t := after.In(zone).Truncate(time.Second).Add(time.Second)
	for end := after.Add(maxReach); t.Before(end); {
		y, m, d := t.Date()
		switch {
		case !cronFields[4].matches(texts[4], int(m)):
			t = time.Date(y, m+1, 1, 0, 0, 0, 0, zone)
		case !matchesDay(texts, t):
			t = time.Date(y, m, d+1, 0, 0, 0, 0, zone)
		case !cronFields[2].matches(texts[2], t.Hour()):
			t = t.Add(time.Hour - time.Duration(t.Minute())*time.Minute - time.Duration(t.Second())*time.Second)
		case !cronFields[1].matches(texts[1], t.Minute()):
			t = t.Add(time.Minute - time.Duration(t.Second())*time.Second)
		case !cronFields[0].matches(texts[0], t.Second()):
			t = t.Add(time.Second)
		default:
			return t.UTC()
		}
	}
	return time.Time{}
}

// schedule sets the next run. A cron that is paused has none.
func (c *cron) schedule(now time.Time) {
	c.next = time.Time{}
	if !c.enabled {
		return
	}
	expression, _ := textOf(c.fields["expression"])
	name, _ := textOf(c.fields["timezone"])
	zone, err := time.LoadLocation(name) // "" is UTC
	if err == nil {
		c.next = nextRun(expression, zone, now)
	}
}

// fireCrons makes the jobs of crons whose time has come: of several ticks that were missed only one, as by servers.
func (s *Server) fireCrons(now time.Time) (fired bool) {
	for _, name := range slices.Sorted(maps.Keys(s.crons)) {
		c := s.crons[name]
		if c.next.IsZero() || c.next.After(now) {
			continue
		}
		at := c.next
		c.schedule(now)
		overlap, _ := textOf(c.fields["overlap_policy"])
		unfinished := slices.DeleteFunc(slices.Clone(s.order), func(j *record) bool { return j.cron != name || j.State.Terminal() })
		if overlap == "cancel_previous" || overlap == "cancel" {
			for _, j := range unfinished {
				s.end(j, ojs.StateCancelled)
			}
		} else if (overlap == "" || overlap == "skip") && len(unfinished) > 0 {
			continue
		}
		if j, refused := s.fire(c, at); refused == nil {
			fired = true
			s.emit(ojs.EventCronTriggered, j, object{"cron_name": name, "scheduled_at": at})
		}
	}
	return fired
}

// fire makes a job of the template, or finds the one that its unique policy names.
func (s *Server) fire(c *cron, at time.Time) (j *record, refused *ojs.Error) {
	sub, refused := readJob(c.template, s.now())
	if refused != nil {
		return nil, refused
	}
	name, _ := textOf(c.fields["name"])
	sub.Meta["cron_name"], sub.Meta["cron_triggered_at"] = name, at.Format(time.RFC3339)
	p, refused := s.prepare(sub)
	switch {
	case refused != nil:
		return nil, refused
	case p.twin != nil:
		return p.twin, nil
	}
	p.job.cron = name
	c.runs++
	c.last = at
	s.store(p)
	return p.job, nil
}

func quoted(text string) json.RawMessage {
	data, err := json.Marshal(text)
	if err != nil {
		return json.RawMessage(`""`)
	}
	return data
}

func (c *cron) show() object {
	status := "paused"
	if c.enabled {
		status = "active"
	}
	o := object{
		"enabled": c.enabled, "status": status, "run_count": c.runs, "created_at": c.created, "updated_at": c.created, "timezone": "UTC",
		"overlap_policy": "skip", "description": nil, "meta": object{}, "job_template": c.template, "last_run_at": nullTime(c.last),
		"next_run_at": nullTime(c.next),
	}
	for name, value := range c.fields {
		o[name] = value
	}
	o["id"], o["cron"], o["schedule"] = c.fields["name"], c.fields["expression"], c.fields["expression"]
	var options struct {
		Queue string `json:"queue"`
	}
	_ = json.Unmarshal(c.fields["options"], &options) // it is ours
	if o["queue"] = options.Queue; options.Queue == "" {
		o["queue"] = "default"
	}
	return o
}

func (s *Server) serveCrons(path []string, r *Request) answer {
	if len(path) == 0 && r.Method == http.MethodGet {
		all := []object{}
		for _, name := range slices.Sorted(maps.Keys(s.crons)) {
			all = append(all, s.crons[name].show())
		}
		return page(r, "cron_jobs", all, "crons")
	}
	if len(path) == 0 || r.Method == http.MethodPut {
		name := ""
		if len(path) > 0 {
			name = path[0]
		}
		c, refused := readCron(r.Body, name, nil, s.now())
		if refused != nil {
			return refusal(refused)
		}
		_ = json.Unmarshal(c.fields["name"], &name) // it is a text
		status := http.StatusCreated
		old := s.crons[name]
		if old != nil {
			c.created, c.runs, c.last = old.created, old.runs, old.last
			status = http.StatusOK
		}
		c.schedule(s.now())
		// Registering at every start of a program does not move @every.
		if old != nil && old.enabled && c.enabled && string(old.fields["expression"]) == string(c.fields["expression"]) &&
			string(old.fields["timezone"]) == string(c.fields["timezone"]) {
			c.next = old.next
		}
		s.crons[name] = c
		a := created(object{"cron_job": c.show(), "cron": c.show()})
		a.status = status
		a.header = http.Header{"Location": {"/ojs/v1/cron/" + name}}
		return a
	}
	c := s.crons[path[0]]
	if c == nil {
		return notFound("cron", path[0])
	}
	shown := object{"name": path[0]}
	switch action := strings.Join(path[1:], "/"); {
	case action == "" && r.Method == http.MethodDelete:
		delete(s.crons, path[0])
		shown["deleted"] = true
	case action == "" && r.Method == http.MethodPatch:
		changed, refused := readCron(r.Body, path[0], c, s.now())
		if refused != nil {
			return refusal(refused)
		}
		c = changed
		c.schedule(s.now())
		s.crons[path[0]] = c
	case action == "" && r.Method == http.MethodGet:
		shown = c.show()
	case action == "pause" || action == "resume":
		c.enabled = action == "resume"
		c.schedule(s.now())
		shown["paused"] = !c.enabled
	case action == "history":
		return page(r, "executions", []object{})
	case action == "trigger":
		return s.trigger(c)
	default:
		return noRoute(r)
	}
	shown["cron_job"], shown["cron"] = c.show(), c.show()
	return ok(shown)
}

// trigger makes a job of the template now.
func (s *Server) trigger(c *cron) answer {
	j, refused := s.fire(c, s.now())
	if refused != nil {
		return refusal(refused)
	}
	return created(object{"job_id": j.ID, "job": j.show(), "cron_name": c.fields["name"]})
}
