package grpcapi

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/ojsd/ojsd/internal/spec"
)

// codec is the library's, but for messages that cannot be read, such as those with invalid UTF-8: the library would say
// INTERNAL before anybody else has a word. They pass as a mark, and readable refuses them.
// It must be set by ForceServerCodecV2, or a client could choose another one by its content-type.
type codec struct{ encoding.CodecV2 }

// encoded is a message in protobuf that many streams share.
// It must not be changed after it was handed to the library.
type encoded []byte

// Marshal is what the library calls.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if text, ok := v.(encoded); ok {
		return mem.BufferSlice{mem.SliceBuffer(text)}, nil
	}
	return c.CodecV2.Marshal(v)
}

// markNumber is of a field that no message has. A client that sends one has its message refused, too.
// It is the largest number that protobuf permits.
const markNumber = protowire.Number(536_870_911)

// Unmarshal is what the library calls.
// The message is reset first, so that no part of what could not be read is acted on.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	message, ok := v.(proto.Message)
	if err == nil || !ok {
		return err
	}
	proto.Reset(message)
	mark := protowire.AppendString(protowire.AppendTag(nil, markNumber, protowire.BytesType), err.Error())
	message.ProtoReflect().SetUnknown(mark)
	return nil
}

// readable refuses what codec has marked.
// Unknown fields of other numbers are ignored, as protobuf has it.
func readable(v any) error {
	message, ok := v.(proto.Message)
	if !ok {
		return nil
	}
	unknown := message.ProtoReflect().GetUnknown()
	if len(unknown) == 0 {
		return nil
	}
	number, _, n := protowire.ConsumeTag(unknown)
	if n < 0 || number != markNumber {
		return nil
	}
	why, _ := protowire.ConsumeString(unknown[n:])
	return spec.InvalidPayload("message", "a message of this method in valid protobuf", nil, "The message cannot be read: "+why+".")
}
