module github.com/ojsd/ojsd/ojs/ojsotel

go 1.26.0

require (
	github.com/ojsd/ojsd/ojs v0.1.0
	go.opentelemetry.io/otel v1.38.0
	go.opentelemetry.io/otel/metric v1.38.0
	go.opentelemetry.io/otel/trace v1.38.0
)

require (
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	go.opentelemetry.io/auto/sdk v1.1.0 // indirect
)

replace github.com/ojsd/ojsd/ojs => ../
