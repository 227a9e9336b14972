package kvevents

import "testing"

func TestMediumTier(t *testing.T) {
	t.Parallel()

	for tier, media := range map[Tier][]Medium{
		TierGPU:     {"", "GPU", "gpu"},
		TierCPU:     {"CPU", "cpu", "CPU_PINNED", "CPU_TIER1", "cpu_tier2"},
		TierDisk:    {"DISK", "STORAGE", "FS", "OBJ", "disk"},
		TierUnknown: {"REMOTE", "EXTERNAL", "GPU ", "HBM"},
	} {
		for _, m := range media {
			if got := m.Tier(); got != tier {
				t.Errorf("Medium(%q).Tier() = %v, want %v", m, got, tier)
			}
		}
	}
	var got []Tier
	for _, ev := range sample(t, "tier_names").Events {
		got = append(got, stored(t, ev).Medium.Tier())
	}
	want := []Tier{TierGPU, TierGPU, TierCPU, TierCPU, TierCPU, TierDisk, TierDisk, TierUnknown, TierGPU, TierGPU}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("event %d is on %v, want %v", i, got[i], want[i])
		}
	}
}
