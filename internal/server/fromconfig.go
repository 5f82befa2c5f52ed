package server

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/ojsd/ojsd/internal/config"
	"github.com/ojsd/ojsd/internal/egress"
	"github.com/ojsd/ojsd/internal/envelope"
	"github.com/ojsd/ojsd/internal/node"
)

// FromConfig is the configuration of a server with these settings. What is no setting has its fixed value.
func FromConfig(c config.Config, logger *slog.Logger, version string) Config {
	return Config{
		DatabaseURL: c.Database.URL, DatabaseListenURL: cmp.Or(c.Database.ListenURL, c.Database.URL),
		DatabaseMaxConns: int32(c.Database.MaxConns), DatabasePooler: c.Database.Pooler, Migrate: c.Database.Migrate,
		Listen: c.Server.Listen, APIKeys: c.Server.APIKeys, CORSOrigins: c.Server.CORSOrigins, ShutdownTimeout: c.Server.ShutdownTimeout,
		PublicURL: publicURL(c), Version: version, Logger: logger,
		Limits:            envelope.Limits{MaxEnvelopeBytes: int(c.Jobs.MaxSize), MaxResultBytes: int(c.Jobs.MaxSize)},
		DefaultVisibility: c.Jobs.VisibilityTimeout, DefaultTimeout: c.Jobs.Timeout, ResultTTL: noLimit(c.Jobs.ResultTTL),
		WorkerDeadAfter: c.Workers.DeadAfter,
		Retention: Retention{
			Completed: noLimit(c.Retention.Completed), Cancelled: noLimit(c.Retention.Completed), Discarded: noLimit(c.Retention.Discarded),
			DeadLetterMaxAge: noLimit(c.DeadLetter.MaxAge), DeadLetterMaxCount: noLimit(c.DeadLetter.MaxCount),
		},
		Events: Events{
			ServiceName: c.Events.ServiceName, RetentionPeriod: noLimit(c.Events.RetentionPeriod), MaxCount: noLimit(c.Events.MaxCount),
			NoWorkerHeartbeat: !c.Events.WorkerHeartbeat,
		},
		Realtime: node.Realtime{
			DropOldest: c.Realtime.Overflow == "drop", MaxPerClient: c.Realtime.MaxConnectionsPerClient, RateLimit: noLimit(c.Realtime.RateLimitPerSecond),
			QueryToken: c.Realtime.AllowQueryToken, AllowedOrigins: c.Server.CORSOrigins,
		},
		GRPC: GRPC{
			Disabled: !c.GRPC.Enabled, Listen: c.GRPC.Listen, TLSCert: c.GRPC.TLSCert, TLSKey: c.GRPC.TLSKey, ClientCA: c.GRPC.ClientCA,
		},
		Webhooks:  webhooksFromConfig(c.Webhooks),
		Metrics:   Metrics{RequireAuth: c.Metrics.RequireAuth},
		LogMeta:   c.Logging.Payloads,
		TestReset: c.Tests.EnableReset, TestDirectives: c.Tests.Directives, LogPayloads: c.Logging.Payloads,
	}
}

func webhooksFromConfig(c config.Webhooks) Webhooks {
	w := Webhooks{
		Disabled: !c.Enabled,
		Rules:    egress.Rules{AllowHTTP: c.AllowHTTP, AllowNetworks: c.AllowNetworks.Networks, AllowHosts: c.AllowNetworks.Hosts},
		CAFile:   c.CAFile, ProxyURL: c.ProxyURL, RetrySchedule: c.RetrySchedule, DisableAfter: noLimit(c.DisableAfter),
		MaxSubscriptions: int32(c.MaxSubscriptions), DeliveryRetention: noLimit(c.DeliveryRetention),
	}
	for _, key := range c.EncryptionKeys {
		w.EncryptionKeys = append(w.EncryptionKeys, key)
	}
	return w
}

func publicURL(c config.Config) string {
	if c.Server.PublicURL == nil {
		return ""
	}
	return c.Server.PublicURL.String()
}

// noLimit turns 0, which is no limit in settings, into the negative value that it is here.
func noLimit[T time.Duration | int | int64](value T) T {
	if value == 0 {
		return -1
	}
	return value
}
