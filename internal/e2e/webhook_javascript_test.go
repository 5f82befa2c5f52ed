package e2e_test

import (
	"bufio"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// verdict is a line of testdata/receiver.js.
type verdict struct {
	Port     int
	OK       bool
	Standard bool
	Type     string
	Attempt  int
	Delivery string
}

// startReceiver runs the receiver in Node. In CI it must be there: `make test` installs it.
func startReceiver(t *testing.T, e *endpoint, secret string) (port int, next func() verdict) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("node is not installed; `make test` installs it")
	}
	require.NoError(t, err)
	key, err := x509.MarshalPKCS8PrivateKey(e.TLS.Certificates[0].PrivateKey)
	require.NoError(t, err)
	keyFile := filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))

	cmd := exec.Command(node, "testdata/receiver.js")
	cmd.Env = append(os.Environ(), "SECRET="+secret, "CERT="+e.ca, "KEY="+keyFile)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	lines := make(chan verdict, 100)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			var v verdict
			if err := json.Unmarshal(scanner.Bytes(), &v); err != nil {
				t.Errorf("receiver says %q", scanner.Text())
			}
			lines <- v
		}
	}()
	t.Cleanup(func() {
		_ = stdin.Close() // which ends it
		for range lines {
		}
		require.NoError(t, cmd.Wait())
	})
	next = func() verdict {
		t.Helper()
		select {
		case v, open := <-lines:
			require.True(t, open, "the receiver has ended")
			return v
		case <-time.After(waitFor):
			require.Fail(t, "the receiver got nothing")
			return verdict{}
		}
	}
	return next().Port, next
}

// TestWebhookNodeReceiver: a receiver written in JavaScript checks what is sent, before, during and after a rotation.
func TestWebhookNodeReceiver(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	const first = "whsec_Zm9yLXRlc3RzLW9ubHktbm90LWEtc2VjcmV0LTAwMDE="
	port, next := startReceiver(t, e, first)
	a := setup(t, e.quick)
	url := fmt.Sprintf("https://127.0.0.1:%d", port)
	sub := a.post("/ojs/v1/webhooks", fmt.Sprintf(`{"url":"%s/hook","events":["job.enqueued"],"secret":"%s","standard_webhooks":true}`, url, first)).is(201).at("id")
	deliver := func(attempt int) {
		t.Helper()
		a.push(`"type":"t","args":["é😀"],"meta":{"x":"\u0000"}`)
		for try := 1; ; try++ {
			v := next()
			require.Equal(t, try, v.Attempt)
			require.True(t, v.Standard || !v.OK)
			if v.OK {
				require.Equal(t, "job.enqueued", v.Type)
				require.Equal(t, attempt, try)
				break
			}
		}
		eventually(t, func() bool { return a.deliveries("subscription_id="+sub).at("deliveries.0.status") == "delivered" })
	}
	deliver(1)
	second := a.post("/ojs/v1/webhooks/"+sub+"/rotate-secret", "").is(200).at("secret")
	deliver(1)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/secret", strings.NewReader(second))
	require.NoError(t, err)
	res, err := e.Client().Do(req)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	deliver(2)
	deliver(1)
	a.del("/ojs/v1/webhooks/" + sub + "/secrets/previous").is(http.StatusOK)
	deliver(1)
	require.Equal(t, "true", a.post("/ojs/v1/webhooks/"+sub+"/test", "").is(200).at("success"))
	require.Equal(t, "webhook.test", next().Type)
}
