package grpcapi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/ojsd/ojsd/internal/spec"
)

// 4 MiB is the bound of the library for messages and what clients accept by default.
const (
	// maxMessage bounds every message but that of EnqueueBatch.
	maxMessage = 4 << 20

	// openMessage bounds the messages of callers without a key: what they may ask about has no name as long as that.
	openMessage = 4 << 10

	// chunk is how much is reserved and read at a time.
	chunk = 256 << 10
)

// transport is what the stream of the library does besides: it reads parts of a message. The library would read and decompress a
// message whole, up to a size that is the same for all methods and callers, before its bytes can be counted.
// The stream of grpc-go has these methods but promises them to nobody: a new release may need a change here. A test fails
// then, because RecvMsg answers no call.
type transport interface {
	RecvCompress() string
	ReadMessageHeader(header []byte) error
	Read(n int) (mem.BufferSlice, error)
}

// received is a stream that a message is read from.
// limit holds for the message as sent and for the decompressed one, so a small message cannot become a large one.
type received struct {
	transport
	stream *serverStream
	field  string // that a refusal names
	limit  int    // bytes of a message, before and after decompression
}

// read reads a message into m. Memory is reserved as the bytes arrive, not by the length that the client promises.
// What it has reserved stays counted in the stream until the call ends.
func (r received) read(m any, codec encoding.CodecV2) error {
	var header [5]byte // 1 if the message is compressed, and its length
	if err := r.ReadMessageHeader(header[:]); err != nil {
		return r.stream.broken(err)
	}
	length := binary.BigEndian.Uint32(header[1:])
	if int64(length) > int64(r.limit) {
		return spec.TooLarge(r.field, r.limit, int(length))
	}
	data, err := r.body(int(length))
	// A closure, because data is assigned again by append; the codec has copied what it needs.
	defer func() { data.Free() }()
	if err != nil {
		return err
	}
	if header[0] == 0 {
		return codec.Unmarshal(data, m)
	}
	text, err := r.decompress(data)
	if err != nil {
		return err
	}
	return codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(text)}, m)
}

// It reads in chunks, so that a client which promises 32 MiB and sends nothing reserves 256 KiB.
func (r received) body(length int) (data mem.BufferSlice, err error) {
	for length > 0 {
		n := min(length, chunk)
		if err := r.stream.reserve(n); err != nil {
			return data, err
		}
		part, err := r.Read(n)
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return data, r.stream.broken(err)
		}
		data, length = append(data, part...), length-n
	}
	return data, nil
}

// It stops one byte above the limit.
func (r received) decompress(data mem.BufferSlice) ([]byte, error) {
	compressor := encoding.GetCompressor(r.RecvCompress())
	if compressor == nil {
		return nil, status.Errorf(codes.Internal, "the message is compressed, but grpc-encoding is %q", r.RecvCompress())
	}
	packed := data.Reader()
	defer func() { _ = packed.Close() }() // frees its buffers
	src, err := compressor.Decompress(packed)
	if err != nil {
		return nil, brokenMessage(err)
	}
	var text []byte
	for {
		if len(text) > r.limit {
			return nil, spec.TooLarge(r.field, r.limit, 0)
		}
		if len(text) == cap(text) {
			capacity := min(max(2*cap(text), chunk), r.limit+1)
			if err := r.stream.reserve(capacity - cap(text)); err != nil {
				return nil, err
			}
			text = append(make([]byte, 0, capacity), text...)
		}
		n, err := src.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		if errors.Is(err, io.EOF) {
			return text, nil
		}
		if err != nil {
			return nil, brokenMessage(err)
		}
	}
}

func brokenMessage(err error) error {
	return spec.InvalidPayload("message", "a message in valid gzip", nil, fmt.Sprintf("The message cannot be decompressed: %v.", err))
}

// end makes sure that no second message follows where a method takes one.
// A unary method of the library would check it, too; asStreams has made streams of them.
func (r received) end() error {
	var header [5]byte
	err := r.ReadMessageHeader(header[:])
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return r.stream.broken(err)
	}
	return status.Error(codes.Internal, "the method takes one message, and the client has sent another one")
}

// broken is the error of a message that did not arrive.
// io.EOF means the regular end for a stream whose client may send any number of messages.
func (s *serverStream) broken(err error) error {
	switch {
	case errors.Is(err, io.EOF) && s.many:
		return io.EOF
	case errors.Is(err, io.EOF):
		return status.Error(codes.Internal, "the method takes a message, and the client has sent none")
	case s.ctx.Err() != nil:
		return status.FromContextError(s.ctx.Err()).Err()
	}
	return status.Error(codes.Internal, err.Error())
}

// reserve counts bytes of a message, until the next one or the end of the call.
// UNAVAILABLE tells the client to send the message again.
func (s *serverStream) reserve(bytes int) error {
	if err := s.api.Memory.Take(bytes); err != nil {
		return err
	}
	s.reserved += bytes
	return nil
}

// It may be called again.
func (s *serverStream) release() {
	s.api.Memory.Free(s.reserved)
	s.reserved = 0
}

// RecvMsg reads a message, and refuses what no method takes. Callers without a key may send what has no fields, which is not read,
// and the name of a service whose health they want to know.
// Here every message of every method is checked once, before its handler sees it: size, form, and whose it is.
func (s *serverStream) RecvMsg(m any) error {
	s.release()
	stream, ok := grpc.ServerTransportStreamFromContext(s.ctx).(transport)
	if !ok {
		return errors.New("this release of grpc-go does not let messages be read in parts")
	}
	call := callOf(s.ctx)
	from := received{transport: stream, stream: s}
	from.field, from.limit = s.api.limitOf(call.method)
	if len(s.api.keys) > 0 && call.caller.Principal == "" {
		// Only Manifest and Health get here, whose requests have no fields.
		if !isLibrary(call.method) {
			return nil
		}
		if stream.RecvCompress() != "" {
			return spec.Unauthenticated()
		}
		from.field, from.limit = "message", openMessage
	}
	if err := from.read(m, s.api.codec); err != nil {
		return err
	}
	if !s.many {
		if err := from.end(); err != nil {
			return err
		}
	}
	if err := s.api.checkMessage(s.ctx, m); err != nil {
		return err
	}
	return s.api.confine(s.ctx, m)
}
