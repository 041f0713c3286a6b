// What leaderworkerset.x-k8s.io/v1 takes (github.com/kubernetes-sigs/lws), for the type checker: no package has it.
import type { IObjectMeta } from "@kubernetes-models/apimachinery/apis/meta/v1/ObjectMeta";
import type { IPersistentVolumeClaim } from "kubernetes-models/v1/PersistentVolumeClaim";
import type { IPodTemplateSpec } from "kubernetes-models/v1/PodTemplateSpec";

export interface ILeaderWorkerSet {
    apiVersion: "leaderworkerset.x-k8s.io/v1";
    kind: "LeaderWorkerSet";
    metadata?: IObjectMeta;
    spec: {
        replicas?: number;
        startupPolicy?: "LeaderCreated" | "LeaderReady";
        networkConfig?: { subdomainPolicy: "Shared" | "UniquePerReplica" };
        rolloutStrategy?: {
            type: "RollingUpdate";
            rollingUpdateConfiguration?: {
                partition?: number;
                maxUnavailable?: number | string;
                maxSurge?: number | string;
            };
        };
        leaderWorkerTemplate: {
            size?: number;
            restartPolicy?: "RecreateGroupOnPodRestart" | "RecreateGroupAfterStart" | "None";
            leaderTemplate?: IPodTemplateSpec;
            workerTemplate: IPodTemplateSpec;
            subGroupPolicy?: { subGroupPolicyType?: "LeaderWorker" | "LeaderExcluded"; subGroupSize?: number };
            volumeClaimTemplates?: IPersistentVolumeClaim[];
        };
    };
}
