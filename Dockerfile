# The version of the image: docker build --build-arg VERSION=v1.2.3 .
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
COPY ojs/go.mod ojs/
COPY ojs/ojspgx/go.mod ojs/ojspgx/go.sum ojs/ojspgx/
COPY ojs/ojsotel/go.mod ojs/ojsotel/go.sum ojs/ojsotel/
RUN go mod download
COPY . .
ARG VERSION=dev
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o /ojsd ./cmd/ojsd

# static: no shell and no libc, but CA certificates and time zones. nonroot: user 65532.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /ojsd /ojsd
EXPOSE 8080 9090
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/ojsd", "healthcheck"]
ENTRYPOINT ["/ojsd"]
CMD ["serve"]
