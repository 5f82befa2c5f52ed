// Package ojstest is a server of the Open Job Spec in memory, for tests of programs that use package ojs:
//
//	func TestSignUp(t *testing.T) {
//		server := ojstest.New()
//		signUp(ctx, server.Client(), "ada@example.com")
//		job := server.RequireEnqueued(t, "email.send")
//		…
//	}
//
// A [Server] is a transport; nothing listens, and no time passes but by [Server.Advance]. Workers run against it as against a
// server; [Server.Drain] runs one until there is nothing left to do. It has jobs with retries, the worker protocol, workflows, crons, dead letters, webhooks
// and events, as far as tests of clients need them: it does not check what only servers check, fires no crons and delivers no webhooks.
package ojstest
