// Uses the hub "hub" of two partitions as users of Microsoft's Go SDK do. The connection string is the only argument.
// Exits with 0 if all parts succeed, else with 1 after a line for each part that failed.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	eh "github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
)

const (
	hub     = "hub"
	timeout = 30 * time.Second // for each part
)

// In this order: the later parts read events that the second one sends.
var parts = []struct {
	name string
	run  func(ctx context.Context, connection string) error
}{
	{"properties of the hub and of an empty partition", properties},
	{"producer", produce},
	{"properties of a partition with events", partitionProperties},
	{"start positions", startPositions},
	{"without prefetch", withoutPrefetch},
	{"owner levels", ownerLevels},
	{"errors", refusals},
	{"processor", process},
}

func main() {
	status := 0
	for _, part := range parts {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		if err := part.run(ctx, os.Args[1]); err != nil {
			status = 1
			fmt.Printf("%s: %v\n", part.name, err)
		}
		cancel()
	}
	os.Exit(status)
}

// check returns an error unless got equals want.
func check[T any](what string, got, want T) error {
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Errorf("%s: %v instead of %v", what, got, want)
	}
	return nil
}

func producer(connection string) (*eh.ProducerClient, error) {
	return eh.NewProducerClientFromConnectionString(connection, "", nil)
}

func consumer(connection string) (*eh.ConsumerClient, error) {
	return eh.NewConsumerClientFromConnectionString(connection, "", eh.DefaultConsumerGroup, nil)
}

func properties(ctx context.Context, connection string) error {
	client, err := producer(connection)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	hubProperties, err := client.GetEventHubProperties(ctx, nil)
	if err != nil {
		return err
	}
	partition, err := client.GetPartitionProperties(ctx, "1", nil)
	age := time.Since(hubProperties.CreatedOn)
	return errors.Join(
		err,
		check("name", hubProperties.Name, hub),
		check("partitions", hubProperties.PartitionIDs, []string{"0", "1"}),
		check("geo-replication", hubProperties.GeoReplicationEnabled, false),
		check("created in the last hour", age > 0 && age < time.Hour, true),
		check("partition", partition.PartitionID, "1"),
		check("hub of the partition", partition.EventHubName, hub),
		check("empty", partition.IsEmpty, true),
		check("first", partition.BeginningSequenceNumber, -1),
		check("last", partition.LastEnqueuedSequenceNumber, -1),
	)
}

// produce sends ten events with properties to partition 0, one of a MB to partition 1, and ten with a key.
func produce(ctx context.Context, connection string) error {
	client, err := producer(connection)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	zero, one, key := "0", "1", "key"
	id, kind := "id-1", "text/plain"
	small := func(number int) *eh.EventData {
		properties := map[string]any{"number": int64(number), "text": "ä", "yes": true, "bytes": []byte{0, 255}}
		body := []byte(fmt.Sprint("event ", number))
		return &eh.EventData{Body: body, Properties: properties, MessageID: &id, ContentType: &kind}
	}
	large := func(int) *eh.EventData { return &eh.EventData{Body: make([]byte, 1_000_000)} }
	return errors.Join(
		send(ctx, client, &eh.EventDataBatchOptions{PartitionID: &zero}, 10, small),
		send(ctx, client, &eh.EventDataBatchOptions{PartitionID: &one}, 1, large),
		send(ctx, client, &eh.EventDataBatchOptions{PartitionKey: &key}, 10, small),
		tooLarge(ctx, client),
	)
}

func send(
	ctx context.Context, client *eh.ProducerClient, to *eh.EventDataBatchOptions, count int, event func(int) *eh.EventData,
) error {
	batch, err := client.NewEventDataBatch(ctx, to)
	if err != nil {
		return err
	}
	for number := range count {
		if err := batch.AddEventData(event(number), nil); err != nil {
			return err
		}
	}
	return client.SendEventDataBatch(ctx, batch, nil)
}

func tooLarge(ctx context.Context, client *eh.ProducerClient) error {
	batch, err := client.NewEventDataBatch(ctx, nil)
	if err != nil {
		return err
	}
	err = batch.AddEventData(&eh.EventData{Body: make([]byte, 3<<20)}, nil)
	return check("an event that is too large", errors.Is(err, eh.ErrEventDataTooLarge), true)
}

func partitionProperties(ctx context.Context, connection string) error {
	client, err := consumer(connection)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	first, err := client.GetPartitionProperties(ctx, "0", nil)
	if err != nil {
		return err
	}
	second, err := client.GetPartitionProperties(ctx, "1", nil)
	return errors.Join(
		err,
		check("empty", first.IsEmpty, false),
		check("events", first.LastEnqueuedSequenceNumber+second.LastEnqueuedSequenceNumber+2, 21),
		check("enqueued just now", time.Since(first.LastEnqueuedOn) < time.Minute, true),
		check("an offset", first.LastEnqueuedOffset != "", true),
	)
}

// read returns the first count events of partition 0 from start on.
func read(ctx context.Context, connection string, options eh.PartitionClientOptions, count int) ([]*eh.ReceivedEventData, error) {
	client, err := consumer(connection)
	if err != nil {
		return nil, err
	}
	defer client.Close(ctx)
	partition, err := client.NewPartitionClient("0", &options)
	if err != nil {
		return nil, err
	}
	defer partition.Close(ctx)
	return partition.ReceiveEvents(ctx, count, nil)
}

func numbers(events []*eh.ReceivedEventData) (found []int64) {
	for _, event := range events {
		found = append(found, event.SequenceNumber)
	}
	return
}

func from(position eh.StartPosition) eh.PartitionClientOptions {
	return eh.PartitionClientOptions{StartPosition: position}
}

func startPositions(ctx context.Context, connection string) error {
	yes, five := true, int64(5)
	all, err := read(ctx, connection, from(eh.StartPosition{Earliest: &yes}), 10)
	if err != nil {
		return err
	}
	event := all[3]
	problems := []error{
		check("numbers", numbers(all), []int64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}),
		check("body", string(event.Body), "event 3"),
		check("properties", event.Properties, map[string]any{"number": int64(3), "text": "ä", "yes": true, "bytes": []byte{0, 255}}),
		check("message id", *event.MessageID, "id-1"),
		check("content type", *event.ContentType, "text/plain"),
		check("a time", event.EnqueuedTime != nil && time.Since(*event.EnqueuedTime) < time.Minute, true),
	}
	for _, start := range []struct {
		name     string
		position eh.StartPosition
		first    int64
	}{
		{"after an offset", eh.StartPosition{Offset: &event.Offset}, 4},
		{"at an offset", eh.StartPosition{Offset: &event.Offset, Inclusive: true}, 3},
		{"after a number", eh.StartPosition{SequenceNumber: &five}, 6},
		{"at a number", eh.StartPosition{SequenceNumber: &five, Inclusive: true}, 5},
		{"at a time", eh.StartPosition{EnqueuedTime: all[0].EnqueuedTime, Inclusive: true}, 0},
	} {
		events, err := read(ctx, connection, from(start.position), 1)
		problems = append(problems, err)
		if err == nil {
			problems = append(problems, check(start.name, numbers(events), []int64{start.first}))
		}
	}
	return errors.Join(problems...)
}

func withoutPrefetch(ctx context.Context, connection string) error {
	yes := true
	options := from(eh.StartPosition{Earliest: &yes})
	options.Prefetch = -1
	events, err := read(ctx, connection, options, 4)
	return errors.Join(err, check("numbers", numbers(events), []int64{0, 1, 2, 3}))
}

func ownerLevels(ctx context.Context, connection string) error {
	client, err := consumer(connection)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	receive := func(level *int64) (func() error, error) {
		yes := true
		options := eh.PartitionClientOptions{StartPosition: eh.StartPosition{Earliest: &yes}, OwnerLevel: level, Prefetch: -1}
		partition, err := client.NewPartitionClient("0", &options)
		if err != nil {
			return nil, err
		}
		read := func() error {
			_, err := partition.ReceiveEvents(ctx, 1, nil)
			return err
		}
		return read, read()
	}
	low, high := int64(1), int64(7)
	present, err := receive(&low)
	if err != nil {
		return err
	}
	_, err = receive(&high)
	_, lower := receive(&low)
	_, none := receive(nil)
	return errors.Join(
		err,
		check("the one with the lower level is disconnected", ownershipLost(present()), true),
		check("a lower level is refused", ownershipLost(lower), true),
		check("none is refused", ownershipLost(none), true),
	)
}

func ownershipLost(err error) bool {
	var problem *eh.Error
	return errors.As(err, &problem) && problem.Code == eh.ErrorCodeOwnershipLost
}

func refusals(ctx context.Context, connection string) error {
	other := strings.Replace(connection, "EntityPath="+hub, "EntityPath=nohub", 1)
	client, err := producer(other)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	_, unknown := client.GetEventHubProperties(ctx, nil)
	return check("an unknown hub is named", unknown != nil && strings.Contains(unknown.Error(), "could not be found"), true)
}

// process reads everything with a processor, twice: the second one continues from the checkpoints of the first.
func process(ctx context.Context, connection string) error {
	store := &memoryStore{}
	first, err := processed(ctx, connection, store, 21)
	if err != nil {
		return err
	}
	client, err := producer(connection)
	if err != nil {
		return err
	}
	defer client.Close(ctx)
	zero := "0"
	more := func(int) *eh.EventData { return &eh.EventData{Body: []byte("more")} }
	if err := send(ctx, client, &eh.EventDataBatchOptions{PartitionID: &zero}, 3, more); err != nil {
		return err
	}
	second, err := processed(ctx, connection, store, 3)
	slices.Sort(first)
	return errors.Join(
		err,
		check("distinct events", len(slices.Compact(slices.Clone(first))), 21),
		check("events with the key", strings.Count(strings.Join(first, " "), "/key"), 10),
		check("events after the checkpoints", len(second), 3),
		check("partitions with a checkpoint", len(store.checkpoints), 2),
	)
}
