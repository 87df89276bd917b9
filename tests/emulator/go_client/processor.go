package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	eh "github.com/Azure/azure-sdk-for-go/sdk/messaging/azeventhubs/v2"
)

// processed runs a processor until it has read count events; returns "partition/number/key" of each.
func processed(ctx context.Context, connection string, store eh.CheckpointStore, count int) ([]string, error) {
	client, err := consumer(connection)
	if err != nil {
		return nil, err
	}
	defer client.Close(ctx)
	yes := true
	processor, err := eh.NewProcessor(client, store, &eh.ProcessorOptions{
		LoadBalancingStrategy: eh.ProcessorStrategyGreedy,
		UpdateInterval:        200 * time.Millisecond,
		StartPositions:        eh.StartPositions{Default: eh.StartPosition{Earliest: &yes}},
	})
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	events, ended := make(chan string), make(chan error, 1)
	go func() { ended <- processor.Run(running) }()
	go dispatch(running, processor, events)
	var seen []string
	for len(seen) < count {
		select {
		case event := <-events:
			seen = append(seen, event)
		case err = <-ended:
			return seen, fmt.Errorf("it ended after %d of %d events: %w", len(seen), count, err)
		}
	}
	stop()
	return seen, <-ended
}

func dispatch(ctx context.Context, processor *eh.Processor, events chan<- string) {
	for {
		partition := processor.NextPartitionClient(ctx)
		if partition == nil {
			return
		}
		go pump(ctx, partition, events)
	}
}

func pump(ctx context.Context, partition *eh.ProcessorPartitionClient, events chan<- string) {
	defer partition.Close(context.Background())
	for {
		received, err := partition.ReceiveEvents(ctx, 1, nil)
		if err != nil {
			return
		}
		if partition.UpdateCheckpoint(ctx, received[0], nil) != nil {
			return
		}
		key := ""
		if received[0].PartitionKey != nil {
			key = *received[0].PartitionKey
		}
		events <- fmt.Sprintf("%s/%d/%s", partition.PartitionID(), received[0].SequenceNumber, key)
	}
}

// memoryStore keeps checkpoints and ownerships of one consumer group.
type memoryStore struct {
	lock        sync.Mutex
	checkpoints map[string]eh.Checkpoint
	ownerships  map[string]eh.Ownership
	claims      int
}

func (s *memoryStore) ClaimOwnership(_ context.Context, claims []eh.Ownership, _ *eh.ClaimOwnershipOptions) ([]eh.Ownership, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.ownerships == nil {
		s.ownerships = map[string]eh.Ownership{}
	}
	var claimed []eh.Ownership
	for _, claim := range claims {
		present, known := s.ownerships[claim.PartitionID]
		if known && (claim.ETag == nil || *claim.ETag != *present.ETag) {
			continue
		}
		s.claims++
		tag := azcore.ETag(fmt.Sprint(s.claims))
		claim.ETag, claim.LastModifiedTime = &tag, time.Now().UTC()
		s.ownerships[claim.PartitionID] = claim
		claimed = append(claimed, claim)
	}
	return claimed, nil
}

func (s *memoryStore) ListOwnership(_ context.Context, _, _, _ string, _ *eh.ListOwnershipOptions) ([]eh.Ownership, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	var all []eh.Ownership
	for _, ownership := range s.ownerships {
		all = append(all, ownership)
	}
	return all, nil
}

func (s *memoryStore) ListCheckpoints(_ context.Context, _, _, _ string, _ *eh.ListCheckpointsOptions) ([]eh.Checkpoint, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	var all []eh.Checkpoint
	for _, checkpoint := range s.checkpoints {
		all = append(all, checkpoint)
	}
	return all, nil
}

func (s *memoryStore) SetCheckpoint(_ context.Context, checkpoint eh.Checkpoint, _ *eh.SetCheckpointOptions) error {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.checkpoints == nil {
		s.checkpoints = map[string]eh.Checkpoint{}
	}
	s.checkpoints[checkpoint.PartitionID] = checkpoint
	return nil
}
