package e2e_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	eventsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/events/v1"
	ojsv1 "github.com/ojsd/ojsd/internal/api/grpcapi/proto/ojs/v1"
	"github.com/ojsd/ojsd/internal/app"
	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/dbtest"
	"github.com/ojsd/ojsd/internal/observe"
)

func TestGRPCMetadata(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t)
	call := func(ctx context.Context) (metadata.MD, error) {
		var header metadata.MD
		_, err := r.GetJob(ctx, &ojsv1.GetJobRequest{JobId: newID()}, grpc.Header(&header))
		return header, err
	}

	t.Run("IsThereWithEveryAnswer", func(t *testing.T) {
		header, err := call(r.ctx("x-ojs-request-id", "my-id-1"))
		require.Equal(t, []string{"my-id-1"}, header.Get("x-ojs-request-id"))
		require.Equal(t, []string{"1.2.3"}, header.Get("x-ojs-server-version"))
		require.Equal(t, []string{"4"}, header.Get("x-ojs-conformance-level"))
		require.Equal(t, "my-id-1", refused(t, err, codes.NotFound, "not_found").metadata["request_id"])
		require.Empty(t, header.Get("retry-after"))
		s := r.listenEvents(&ojsv1.StreamEventsRequest{})
		require.Equal(t, []string{"1.2.3"}, s.header.Get("x-ojs-server-version"))
		require.Regexp(t, `^req_[0-9a-f]{8}-[0-9a-f]{4}-7`, s.header.Get("x-ojs-request-id")[0])
	})

	t.Run("RequestIDIsMadeUnlessItIsGood", func(t *testing.T) {
		for _, id := range []string{"", "with space", strings.Repeat("x", 201)} {
			ctx := r.ctx()
			if id != "" {
				ctx = r.ctx("x-ojs-request-id", id)
			}
			header, err := call(ctx)
			require.Regexp(t, `^req_[0-9a-f]{8}-[0-9a-f]{4}-7`, header.Get("x-ojs-request-id")[0])
			require.Equal(t, header.Get("x-ojs-request-id")[0], refusalOf(t, err).metadata["request_id"])
		}
	})

	t.Run("UnknownMethodsAndServices", func(t *testing.T) {
		for _, method := range []string{"/ojs.v1.OJSService/Push", "/no.Service/Method"} {
			var header metadata.MD
			err := r.conn.Invoke(r.ctx(), method, &ojsv1.HealthRequest{}, &ojsv1.HealthResponse{}, grpc.Header(&header))
			refused(t, err, codes.Unimplemented, "unsupported")
			require.NotEmpty(t, header.Get("x-ojs-request-id"))
		}
	})

	t.Run("CompressedRequests", func(t *testing.T) {
		res, err := r.Enqueue(r.ctx(), &ojsv1.EnqueueRequest{Type: "t", Args: []*structpb.Value{value(t, strings.Repeat("x", 10_000))}}, grpc.UseCompressor(gzip.Name))
		require.NoError(t, err)
		require.Len(t, res.GetJob().GetArgs()[0].GetStringValue(), 10_000)
	})

	t.Run("DeadlineOfTheClient", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t, connections(8))
		r.lockJobs()
		waited := false
		for limit := 2 * time.Second; !waited; limit *= 2 { // a busy machine may take longer until the call waits for the lock
			ctx, cancel := context.WithTimeout(r.ctx(), limit)
			defer cancel()
			done := make(chan error, 1)
			go func() {
				_, err := r.Enqueue(ctx, &ojsv1.EnqueueRequest{Type: "t"})
				done <- err
			}()
			for !waited && len(done) == 0 {
				waited = r.enqueueWaits()
			}
			require.Equal(t, codes.DeadlineExceeded, status.Code(<-done))
		}
	})
}

func TestGRPCAuthentication(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t, func(c *app.Config) { c.Server.APIKeys = []string{"one", "two"} })

	t.Run("EitherWayToShowAKey", func(t *testing.T) {
		for _, pair := range [][2]string{{"authorization", "Bearer one"}, {"authorization", "bearer two"}, {"x-ojs-api-key", "one"}} {
			_, err := r.ListCron(r.ctx(pair[0], pair[1]), &ojsv1.ListCronRequest{})
			require.NoError(t, err)
		}
	})

	t.Run("MissingOrInvalid", func(t *testing.T) {
		for _, pairs := range [][]string{nil, {"authorization", "Bearer no"}, {"authorization", "one"}, {"x-ojs-api-key", "no"}, {"x-ojs-api-key", ""}} {
			_, err := r.ListCron(r.ctx(pairs...), &ojsv1.ListCronRequest{})
			refused(t, err, codes.Unauthenticated, "unauthenticated")
			stream, err := r.StreamEvents(r.ctx(pairs...), &ojsv1.StreamEventsRequest{})
			require.NoError(t, err)
			_, err = stream.Recv()
			refused(t, err, codes.Unauthenticated, "unauthenticated")
		}
		refused(t, r.conn.Invoke(r.ctx(), "/no.Service/Method", &ojsv1.HealthRequest{}, &ojsv1.HealthResponse{}), codes.Unauthenticated, "unauthenticated")
	})

	t.Run("BoundsUnknownKeys", func(t *testing.T) {
		r := setupGRPC(t, func(c *app.Config) { c.Server.APIKeys = []string{"one", "two"} })
		list := func(name, key string) error {
			_, err := r.ListCron(r.ctx(name, key), &ojsv1.ListCronRequest{})
			return err
		}
		require.NoError(t, list("x-ojs-api-key", "one"))
		for i := range 10 {
			refused(t, list("x-ojs-api-key", fmt.Sprint("guess-", i)), codes.Unauthenticated, "unauthenticated")
			refused(t, list("authorization", fmt.Sprint("Bearer other-", i)), codes.Unauthenticated, "unauthenticated")
		}
		refused(t, list("x-ojs-api-key", "guess-10"), codes.ResourceExhausted, "rate_limited")
		refused(t, list("authorization", "Bearer two"), codes.ResourceExhausted, "rate_limited")
		require.NoError(t, list("authorization", "Bearer one"))
		_, err := r.Manifest(r.ctx("x-ojs-api-key", "guess-11"), &ojsv1.ManifestRequest{})
		require.NoError(t, err)
	})

	t.Run("ManifestAndHealthAreOpen", func(t *testing.T) {
		_, err := r.Manifest(r.ctx(), &ojsv1.ManifestRequest{})
		require.NoError(t, err)
		_, err = r.Health(r.ctx(), &ojsv1.HealthRequest{})
		require.NoError(t, err)
		_, err = grpc_health_v1.NewHealthClient(r.conn).Check(r.ctx(), &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
	})

	t.Run("TheKeyIsTheActor", func(t *testing.T) {
		ctx := r.ctx("authorization", "Bearer one", "x-ojs-actor", "ann")
		res, err := r.Enqueue(ctx, &ojsv1.EnqueueRequest{Type: "t"})
		require.NoError(t, err)
		s := listen(t, func(c context.Context) (grpc.ServerStreamingClient[ojsv1.Event], error) {
			return r.StreamEvents(metadata.AppendToOutgoingContext(c, "x-ojs-api-key", "two"), &ojsv1.StreamEventsRequest{EventTypes: []string{"job.cancelled"}})
		})
		_, err = r.CancelJob(ctx, &ojsv1.CancelJobRequest{JobId: res.GetJob().GetId()})
		require.NoError(t, err)
		require.Equal(t, "key:7692c3ad", s.next().GetData().GetFields()["cancelled_by"].GetStringValue())
	})

	t.Run("StreamsPerKey", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t, func(c *app.Config) { c.Server.APIKeys = []string{"one", "two"}; c.Realtime.MaxConnectionsPerClient = 2 })
		open := func(key string) (*inbox[ojsv1.Event], error) {
			ctx, cancel := context.WithCancel(r.ctx("x-ojs-api-key", key))
			stream, err := r.StreamEvents(ctx, &ojsv1.StreamEventsRequest{})
			require.NoError(t, err)
			if md, _ := stream.Header(); len(md.Get("retry-after")) > 0 {
				_, err = stream.Recv()
				require.Equal(t, []string{"1"}, md.Get("retry-after"))
			}
			return &inbox[ojsv1.Event]{cancel: cancel}, err
		}
		first, err := open("one")
		require.NoError(t, err)
		r.open(allEvents, "Authorization: Bearer one") // one over HTTP counts as well
		_, err = open("one")
		e := refused(t, err, codes.ResourceExhausted, "rate_limited")
		require.Equal(t, time.Second, e.retry)
		require.Equal(t, "true", e.metadata["retryable"])
		_, err = open("two")
		require.NoError(t, err)
		first.cancel()
		eventually(t, func() bool { return r.app.API().Streams() == 2 })
		_, err = open("one")
		require.NoError(t, err)
	})
}

func TestGRPCSystem(t *testing.T) {
	t.Parallel()

	t.Run("Manifest", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		m, err := r.Manifest(r.ctx(), &ojsv1.ManifestRequest{})
		require.NoError(t, err)
		require.Equal(t, "1.0", m.GetOjsVersion())
		require.Equal(t, "ojsd", m.GetImplementation().GetName())
		require.Equal(t, "1.2.3", m.GetImplementation().GetVersion())
		require.Equal(t, "go", m.GetImplementation().GetLanguage())
		require.Equal(t, []string{"http", "grpc"}, m.GetProtocols())
		require.Equal(t, "postgres", m.GetBackend())
		http := r.get("/ojs/manifest").is(200)
		require.Equal(t, http.texts("extensions"), m.GetExtensions())
		require.Equal(t, `["http","grpc"]`, http.at("protocols"))
		require.Equal(t, "true", http.at("capabilities.grpc"))
		require.Equal(t, `["notify","poll","sse","websocket","grpc","webhook"]`, http.at("events.transports"))
	})

	t.Run("Health", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		var h *ojsv1.HealthResponse
		eventually(t, func() bool { // LISTEN comes up a moment after the start
			var err error
			h, err = r.Health(r.ctx(), &ojsv1.HealthRequest{})
			require.NoError(t, err)
			return h.GetStatus() == ojsv1.HealthStatus_HEALTH_STATUS_OK
		})
		require.WithinDuration(t, time.Now(), h.GetTimestamp().AsTime(), time.Minute)
		require.Equal(t, "postgres", h.GetDetails().GetFields()["backend"].GetStructValue().GetFields()["type"].GetStringValue())
		require.Equal(t, "ok", h.GetDetails().GetFields()["components"].GetStructValue().GetFields()["listener"].GetStringValue())
	})

	t.Run("HealthServiceMirrorsReadiness", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		health := grpc_health_v1.NewHealthClient(r.conn)
		for _, service := range []string{"", "ojs.v1.OJSService"} {
			res, err := health.Check(r.ctx(), &grpc_health_v1.HealthCheckRequest{Service: service})
			require.NoError(t, err)
			require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, res.GetStatus())
		}
		list, err := health.List(r.ctx(), &grpc_health_v1.HealthListRequest{})
		require.NoError(t, err)
		require.Len(t, list.GetStatuses(), 3)
		_, err = health.Check(r.ctx(), &grpc_health_v1.HealthCheckRequest{Service: "no"})
		refused(t, err, codes.NotFound, "not_found")
		watch := listen(t, func(ctx context.Context) (grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse], error) {
			return health.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
		})
		require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVING, watch.next().GetStatus())
		r.app.SetDraining()
		require.Equal(t, grpc_health_v1.HealthCheckResponse_NOT_SERVING, watch.next().GetStatus())
		res, err := health.Check(r.ctx(), &grpc_health_v1.HealthCheckRequest{})
		require.NoError(t, err)
		require.Equal(t, grpc_health_v1.HealthCheckResponse_NOT_SERVING, res.GetStatus())
		unknown := listen(t, func(ctx context.Context) (grpc.ServerStreamingClient[grpc_health_v1.HealthCheckResponse], error) {
			return health.Watch(ctx, &grpc_health_v1.HealthCheckRequest{Service: "no"})
		})
		require.Equal(t, grpc_health_v1.HealthCheckResponse_SERVICE_UNKNOWN, unknown.next().GetStatus())
	})

	t.Run("Reflection", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		require.Equal(t, []string{"grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection", "ojs.events.v1.OJSEvents", "ojs.v1.OJSService"}, r.services(t))
	})

	t.Run("DisabledOpensNoPort", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) { c.GRPC.Listen = "off" })
		require.Empty(t, a.app.GRPCAddr())
		m := a.get("/ojs/manifest").is(200)
		require.Equal(t, `["http"]`, m.at("protocols"))
		require.Equal(t, "false", m.at("capabilities.grpc"))
		require.Equal(t, `["notify","poll","sse","websocket","webhook"]`, m.at("events.transports"))
	})

	t.Run("BusyPortFailsTheStart", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t)
		c := settings(dbtest.URL(t))
		c.GRPC.Listen = r.app.GRPCAddr()
		_, err := app.Start(t.Context(), c)
		require.ErrorContains(t, err, "listen for grpc")
		require.ErrorContains(t, err, "OJS_GRPC_LISTEN")
		require.ErrorContains(t, err, "address already in use")
	})
}

// reflect asks for the names of the services.
func (r *rpc) reflect(t testing.TB) (*grpc_reflection_v1.ServerReflectionResponse, error) {
	t.Helper()
	stream, err := grpc_reflection_v1.NewServerReflectionClient(r.conn).ServerReflectionInfo(r.ctx())
	require.NoError(t, err)
	// EOF if the call has been refused already; Recv returns why.
	_ = stream.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}})
	return stream.Recv()
}

func (r *rpc) services(t testing.TB) (names []string) {
	t.Helper()
	res, err := r.reflect(t)
	require.NoError(t, err)
	for _, s := range res.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	return names
}

func TestGRPCStop(t *testing.T) {
	t.Parallel()

	t.Run("EndsStreamsAsUnavailable", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t, patientStop)
		events := r.listenEvents(&ojsv1.StreamEventsRequest{})
		spec := listen(t, func(ctx context.Context) (grpc.ServerStreamingClient[eventsv1.Event], error) {
			return r.events().StreamEvents(ctx, &eventsv1.StreamEventsRequest{})
		})
		jobs := r.listenJobs("w", 2, "q")
		reflection, err := grpc_reflection_v1.NewServerReflectionClient(r.conn).ServerReflectionInfo(r.ctx())
		require.NoError(t, err)
		require.NoError(t, reflection.Send(&grpc_reflection_v1.ServerReflectionRequest{MessageRequest: &grpc_reflection_v1.ServerReflectionRequest_ListServices{}}))
		_, err = reflection.Recv()
		require.NoError(t, err)
		require.NoError(t, r.app.Stop())
		require.Equal(t, "true", refused(t, events.ends(), codes.Unavailable, "backend_error").metadata["retryable"])
		refused(t, spec.ends(), codes.Unavailable, "backend_error")
		refused(t, jobs.ends(), codes.Unavailable, "backend_error")
		_, err = reflection.Recv()
		refused(t, err, codes.Unavailable, "backend_error")
		_, err = net.Dial("tcp", r.app.GRPCAddr())
		require.Error(t, err)
	})

	t.Run("LetsCallsFinish", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t, connections(8))
		release := r.lockJobs()
		pushed := r.enqueueing(r.ctx())
		stopped := make(chan error, 1)
		go func() { stopped <- r.app.Stop() }()
		eventually(t, func() bool {
			conn, err := net.Dial("tcp", r.app.GRPCAddr())
			if err == nil {
				_ = conn.Close()
			}
			return err != nil
		})
		release()
		require.NoError(t, <-pushed)
		require.NoError(t, <-stopped)
	})

	t.Run("CutsOffCallsThatDoNotEnd", func(t *testing.T) {
		t.Parallel()
		log := &lineBuffer{}
		r := setupGRPC(t, connections(8), func(c *app.Config) {
			c.Server.ShutdownTimeout, c.Logger = 100*time.Millisecond, observe.NewLogger(log, "json", slog.LevelWarn)
		})
		release := r.lockJobs()
		pushed := r.enqueueing(r.ctx())
		stopped := make(chan error, 1)
		go func() { stopped <- r.app.Stop() }()
		eventually(t, func() bool {
			return strings.Contains(log.String(), "gRPC calls did not end within OJS_SHUTDOWN_TIMEOUT")
		})
		release() // a stop waits for the connections to the database that are in use
		require.NoError(t, <-stopped)
		require.Equal(t, codes.Unavailable, status.Code(<-pushed))
	})

	t.Run("DoesNotWaitForABlockedClient", func(t *testing.T) {
		t.Parallel()
		r := setupGRPC(t, patientStop, func(c *app.Config) { c.Realtime.RateLimitPerSecond = 0 }).narrow()
		stream, err := r.StreamEvents(r.ctx(), &ojsv1.StreamEventsRequest{})
		require.NoError(t, err)
		_, err = stream.Header()
		require.NoError(t, err)
		r.overfill() // and nobody reads
		require.NoError(t, r.app.Stop())
	})
}

func TestGRPCTLS(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	ca.issue()
	manifest := func(a *node, option credentials.TransportCredentials) error {
		r := a.dialGRPC(grpc.WithTransportCredentials(option))
		_, err := r.Manifest(r.ctx(), &ojsv1.ManifestRequest{})
		return err
	}
	own := func(of *authority) credentials.TransportCredentials {
		cert, key := newCertificate(t, of.ca, of.key, of.expires)
		return credentials.NewTLS(&tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{{Certificate: [][]byte{cert.Raw}, PrivateKey: key}}})
	}
	without := credentials.NewTLS(&tls.Config{RootCAs: ca.pool})

	t.Run("TLS", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) {
			c.GRPC = config.GRPC{Listen: "127.0.0.1:0", TLSCert: ca.files.Cert, TLSKey: ca.files.Key}
		})
		require.NoError(t, manifest(a, without))
		require.Error(t, manifest(a, credentials.NewTLS(&tls.Config{})))
		require.Error(t, manifest(a, insecure.NewCredentials()))
	})

	t.Run("MutualTLS", func(t *testing.T) {
		t.Parallel()
		a := setup(t, func(c *app.Config) {
			c.GRPC = config.GRPC{Listen: "127.0.0.1:0", TLSCert: ca.files.Cert, TLSKey: ca.files.Key, ClientCA: ca.files.ClientCA}
		})
		require.NoError(t, manifest(a, own(ca)))
		require.Error(t, manifest(a, without))
		require.Error(t, manifest(a, own(newAuthority(t))))
	})
}

// newCertificate is for 127.0.0.1, client and server, signed by a parent or by itself.
func newCertificate(t testing.TB, parent *x509.Certificate, parentKey *ecdsa.PrivateKey, expires time.Time) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: expires,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: parent == nil, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if parent == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return cert, key
}

func writePEM(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// TestGRPCReadsNothingWithoutAKey sends headers only: the refusal must not wait for a message.
func TestGRPCReadsNothingWithoutAKey(t *testing.T) {
	t.Parallel()
	r := setupGRPC(t, func(c *app.Config) { c.Server.APIKeys = []string{"one"} })
	open := func(method string, options ...grpc.CallOption) grpc.ClientStream {
		t.Helper()
		ctx, cancel := context.WithTimeout(r.ctx(), beforeItsTime)
		t.Cleanup(cancel)
		stream, err := r.conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, method, options...)
		require.NoError(t, err)
		return stream
	}
	for _, method := range []string{ojsv1.OJSService_EnqueueBatch_FullMethodName, ojsv1.OJSService_Ack_FullMethodName, "/no.Service/Method"} {
		refused(t, open(method).RecvMsg(&ojsv1.AckResponse{}), codes.Unauthenticated, "unauthenticated")
	}
	require.NoError(t, open(ojsv1.OJSService_Manifest_FullMethodName).RecvMsg(&ojsv1.ManifestResponse{}))
	// A message of many zeros is small on the wire.
	health := open("/grpc.health.v1.Health/Check", grpc.UseCompressor("gzip"))
	_ = health.SendMsg(&ojsv1.AckRequest{JobId: repeated('x', 1<<20)}) // io.EOF if the call has been refused already
	refused(t, health.RecvMsg(&ojsv1.AckResponse{}), codes.Unauthenticated, "unauthenticated")
}
