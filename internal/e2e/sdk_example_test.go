package e2e_test

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ojsd/ojsd/ojs"
	"github.com/ojsd/ojsd/ojs/ojsadmin"
)

// TestSDKExample runs docs/examples/go/sdk: an order that comes over HTTP is packed and mailed by a workflow, and SIGTERM ends the
// program when its jobs have ended.
func TestSDKExample(t *testing.T) {
	t.Parallel()
	node := setup(t)
	binary := t.TempDir() + "/sdk"
	output, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../../docs/examples/go/sdk").CombinedOutput()
	require.NoError(t, err, "%s", output)
	ctx, cancel := context.WithTimeout(t.Context(), waitFor)
	t.Cleanup(cancel)
	program := exec.CommandContext(ctx, binary)
	program.Env = append(os.Environ(), "OJS_URL="+node.url, "DATABASE_URL="+node.database, "LISTEN=127.0.0.1:0")
	program.Stderr = os.Stderr
	pipe, err := program.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, program.Start())
	lines := bufio.NewScanner(pipe)
	require.True(t, lines.Scan())
	address := strings.TrimPrefix(lines.Text(), "listening on ")

	answer, err := node.client.Post("http://"+address+"/orders?email=ada@example.com", "", nil)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	require.Equal(t, http.StatusAccepted, answer.StatusCode)
	require.True(t, lines.Scan())
	require.Equal(t, "mail to ada@example.com", lines.Text())
	require.NoError(t, program.Process.Signal(syscall.SIGTERM))
	require.False(t, lines.Scan(), "the output has ended")
	require.NoError(t, program.Wait())
	list, err := ojsadmin.New(sdk(t, node.url)).ListWorkflows(t.Context(), ojsadmin.WorkflowFilter{Name: "order"})
	require.NoError(t, err)
	require.Equal(t, ojs.WorkflowCompleted, list.Items[0].State)
}
