{{/*
Rollout workers: the pods of EP groups, hosted by LeaderWorkerSets.

A kind of groups is `context` (the root), its `name` in workers.groups, its values in `group`, and
what follows from them: `size` (devices and memory of a node) and `path` (how expert traffic goes).
*/}}

{{- define "ebbtide.workers" -}}{{ include "ebbtide.fullname" . }}-workers{{- end -}}

{{/* The kinds of groups, under `kinds`, checked. */}}
{{- define "ebbtide.workerKinds" -}}
{{- $kinds := list -}}
{{- range $name, $given := .Values.workers.groups -}}
{{- $kinds = append $kinds (include "ebbtide.workerKind" (list $ $name $given) | fromYaml) -}}
{{- end -}}
{{- toYaml (dict "kinds" $kinds) -}}
{{- end -}}

{{- define "ebbtide.workerKind" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $defaults := dict "nodes" 1 "replicas" 1 "tensorParallel" 1 -}}
{{- $group := mergeOverwrite $defaults (deepCopy (index . 2)) -}}
{{- $at := printf "workers.groups.%s" $name -}}
{{- $set := printf "%s-%s" (include "ebbtide.fullname" $root) $name -}}
{{- if gt (len $set) 45 -}}
{{- $long := printf "%s has %d characters, at most 45" $set (len $set) -}}
{{- $why := "leave room for the names of pods; choose a shorter one, or set fullnameOverride" -}}
{{- fail (printf "%s: %s %s" $at $long $why) -}}
{{- else if not (regexMatch "^[a-z][-a-z0-9]*$" $set) -}}
{{- $why := "must begin with a letter and have no dot, since a service is named so" -}}
{{- fail (printf "%s: %s %s; set fullnameOverride" $at $set $why) -}}
{{- end -}}
{{- $known := default dict (index $root.Values.workers.instanceTypes $group.instanceType) -}}
{{- $size := mergeOverwrite (deepCopy $known) (default dict $group.size) -}}
{{- range list "gpus" "cpu" "memory" "sharedMemory" -}}
{{- if not (hasKey $size .) -}}
{{- $type := printf "%s.instanceType: the size of %s is not known" $at $group.instanceType -}}
{{- $where := "add it to workers.instanceTypes" -}}
{{- fail (printf "%s: %s is missing; %s, or set %s.size.%s" $type . $where $at .) -}}
{{- end -}}
{{- end -}}
{{- $path := include "ebbtide.transportPath" (list $at $group $size) | fromYaml -}}
{{- $gpus := int $size.gpus -}}
{{- if ne (mod $gpus (int $group.tensorParallel)) 0 -}}
{{- $why := "does not divide the number of GPUs of a node" -}}
{{- fail (printf "%s.tensorParallel: %d %s, %d" $at (int $group.tensorParallel) $why $gpus) -}}
{{- end -}}
{{- toYaml (dict "name" $name "set" $set "group" $group "size" $size "path" $path) -}}
{{- end -}}

{{/*
How expert traffic travels: the flags of both engines for it, and its environment. Refused where the
instance type cannot, or where the group is larger than the path is known to carry.
*/}}
{{- define "ebbtide.transportPath" -}}
{{- $at := printf "%s.transportPath" (index . 0) -}}
{{- $group := index . 1 -}}
{{- $size := index . 2 -}}
{{- $gin := default "none" $size.gin -}}
{{- $path := default (ternary "nccl_a2a" "gin_proxy" (eq $gin "none")) $group.transportPath -}}
{{- $paths := include "ebbtide.transportPaths" . | fromYaml -}}
{{- $type := $group.instanceType -}}
{{- $ranks := mul $group.nodes $size.gpus -}}
{{- if and (eq $path "gin_efa_gda") (ne $gin "gda") -}}
{{- fail (printf "%s: %s has no EFA-GDA; take gin_proxy, or another instance type" $at $type) -}}
{{- else if and (eq $path "gin_proxy") (eq $gin "none") -}}
{{- fail (printf "%s: %s has no GIN over EFA; take nccl_a2a or uccl_proxy" $at $type) -}}
{{- else if and (ne $path "nccl_a2a") (not $size.efa) -}}
{{- fail (printf "%s: %s has no EFA; take nccl_a2a" $at $type) -}}
{{- else if and (has $path (list "nvshmem_libfabric" "uccl_proxy")) (gt $ranks 64) -}}
{{- $many := printf "%d ranks (nodes × GPUs)" $ranks -}}
{{- fail (printf "%s: %s with %s; it carries at most 64" $at $path $many) -}}
{{- end -}}
{{- toYaml (set (index $paths $path) "name" $path) -}}
{{- end -}}

{{/* DeepEP V2 lies on NCCL GIN; V1 needs an NVSHMEM that speaks libfabric, or UCCL's module. */}}
{{- define "ebbtide.transportPaths" -}}
gin_efa_gda:
  vllm: deepep_v2
  sglang: [--moe-a2a-backend=deepep_v2]
  env: { NCCL_GIN_TYPE: "5", NCCL_SYM_GIN_KERNELS_ENABLE: "0" }
gin_proxy:
  vllm: deepep_v2
  sglang: [--moe-a2a-backend=deepep_v2]
  env: { NCCL_GIN_TYPE: "2" }
nvshmem_libfabric:
  vllm: deepep_low_latency
  sglang: [--moe-a2a-backend=deepep, --deepep-mode=auto]
  env: { NVSHMEM_REMOTE_TRANSPORT: libfabric, NVSHMEM_LIBFABRIC_PROVIDER: efa }
uccl_proxy:
  vllm: deepep_low_latency
  sglang: [--moe-a2a-backend=deepep, --deepep-mode=auto]
  env: {}
nccl_a2a:
  vllm: allgather_reducescatter
  sglang: [--moe-a2a-backend=none]
  env: {}
{{- end -}}

{{/* What one pod of a group is made from; `leads` is true for the one whose engine answers. */}}
{{- define "ebbtide.workerPod" -}}
{{- $workers := .context.Values.workers -}}
{{- $group := .group -}}
metadata:
  labels:
    {{- include "ebbtide.selectorLabels" . | nindent 4 }}
    # By this label agents know an engine's pod: it leaves its node last, and its group is that of
    # the node.
    ebbtide.dev/engine: {{ $group.engine }}
    {{- /* A run's name may be longer than a label, or end in what a label may not. */}}
    {{- $run := include "ebbtide.run" .context }}
    {{- if regexMatch "^[A-Za-z0-9]([-_A-Za-z0-9]{0,61}[A-Za-z0-9])?$" $run }}
    # Agents of other runs leave it alone.
    ebbtide.dev/run: {{ $run | quote }}
    {{- end }}
    {{- with $workers.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- $scrape := and .leads .context.Values.metrics.scrapeAnnotations }}
  {{- if or $scrape $workers.podAnnotations }}
  annotations:
    {{- if $scrape }}
    prometheus.io/scrape: "true"
    prometheus.io/port: {{ $workers.port | quote }}
    prometheus.io/path: /metrics
    {{- end }}
    {{- with $workers.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  {{- if and .leads $workers.compareSpeed }}
  # Opened by the controller, for good, once the group has shown that it is as fast as those with
  # another image; LeaderWorkerSet then goes on to the next group.
  readinessGates:
    - conditionType: ebbtide.dev/as-fast-as-before
  {{- end }}
  automountServiceAccountToken: false
  # A service with an unlucky name would set variables that engines read, such as VLLM_PORT.
  enableServiceLinks: false
  # Up to here the agent may let running work finish when the pod is deleted.
  terminationGracePeriodSeconds: {{ $workers.terminationGracePeriodSeconds }}
  {{- with $workers.serviceAccountName }}
  serviceAccountName: {{ . }}
  {{- end }}
  {{- with $workers.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .context.Values.image.pullSecrets }}
  imagePullSecrets:
    {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  nodeSelector:
    # Data paths differ between types, so a group has one.
    node.kubernetes.io/instance-type: {{ $group.instanceType }}
    {{- with $group.zone }}
    topology.kubernetes.io/zone: {{ . }}
    {{- end }}
    {{- with $group.nodeSelector }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if and (not $group.zone) (gt (int $group.nodes) 1) }}
  affinity:
    podAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        # EFA does not cross zones: all pods of one group go where the first went.
        - topologyKey: topology.kubernetes.io/zone
          labelSelector:
            matchLabels:
              leaderworkerset.sigs.k8s.io/name: {{ .set }}
          matchLabelKeys: [leaderworkerset.sigs.k8s.io/group-key]
  {{- end }}
  {{- with $workers.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumes:
    - name: shared-memory
      emptyDir:
        medium: Memory
        sizeLimit: {{ .size.sharedMemory }}
    # What NCCL says about its network, for whoever verifies the data path.
    - name: nccl
      emptyDir:
        sizeLimit: 1Gi
    - name: hooks
      configMap:
        name: {{ include "ebbtide.workers" .context }}
    {{- with $group.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  containers:
    - name: engine
      {{- include "ebbtide.workerContainer" . | nindent 6 }}
{{- end -}}

{{- define "ebbtide.workerContainer" -}}
{{- $workers := .context.Values.workers -}}
image: {{ .group.image | quote }}
command:
  {{- include "ebbtide.workerCommand" . | nindent 2 }}
env:
  {{- include "ebbtide.workerEnvironment" . | nindent 2 }}
{{- if .leads }}
ports:
  - name: engine
    containerPort: {{ $workers.port }}
    # The agent and the trainer reach the engine at the node's address.
    hostPort: {{ $workers.port }}
    protocol: TCP
{{- $path := ternary "/health" "/ready" (eq .group.engine "vllm") }}
# A large model loads for many minutes. From then on nothing restarts an engine but itself.
startupProbe:
  httpGet:
    path: {{ $path }}
    port: engine
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: {{ mul 6 $workers.startupMinutes }}
# The engine answers once all ranks of the group have joined it.
readinessProbe:
  httpGet:
    path: {{ $path }}
    port: engine
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}
lifecycle:
  preStop:
    exec:
      command: [python3, /etc/ebbtide/wait-until-drained.py]
securityContext:
  capabilities:
    # Registered memory is locked.
    add: [IPC_LOCK]
volumeMounts:
  - name: shared-memory
    mountPath: /dev/shm
  - name: nccl
    mountPath: /shared
  - name: hooks
    mountPath: /etc/ebbtide
    readOnly: true
  {{- with .group.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- $devices := dict "nvidia.com/gpu" (toString .size.gpus) }}
  {{- if .size.efa }}
  {{- $_ := set $devices "vpc.amazonaws.com/efa" (toString .size.efa) }}
  {{- end }}
  {{- $pages := default (ternary "5120Mi" "0" (not (not .size.efa))) .size.hugepages | toString }}
  {{- if ne $pages "0" }}
  {{- $_ := set $devices "hugepages-2Mi" $pages }}
  {{- end }}
  requests:
    {{- toYaml $devices | nindent 4 }}
    cpu: {{ .size.cpu | quote }}
    memory: {{ .size.memory | quote }}
  # No limit of CPU and memory: the node is the group's alone.
  limits:
    {{- toYaml $devices | nindent 4 }}
{{- end -}}

{{/* How the engine is started. The group's own arguments come last, so they prevail. */}}
{{- define "ebbtide.workerCommand" -}}
{{- $workers := .context.Values.workers -}}
{{- $host := .context.Values.listenAddress | trimPrefix "[" | trimSuffix "]" -}}
{{- $gpus := int .size.gpus -}}
{{- $tensor := int .group.tensorParallel -}}
{{- $nodes := int .group.nodes -}}
{{- $local := div $gpus $tensor -}}
{{- $words := list -}}
{{- if eq .group.engine "vllm" -}}
{{- if not .leads -}}
{{- /* Only a shell can multiply. With `exec` the engine is the one that SIGTERM reaches. */ -}}
{{- $rank := printf "--data-parallel-start-rank=\"$((LWS_WORKER_INDEX * %d))\"" $local -}}
{{- $words = list "sh" "-c" (printf "exec \"$@\" %s" $rank) "sh" -}}
{{- end -}}
{{- $words = concat $words (list "vllm" "serve" .group.model) -}}
{{- if .leads -}}
{{- $words = append $words (printf "--host=%s" $host) -}}
{{- $words = append $words (printf "--port=%d" (int $workers.port)) -}}
{{- $words = append $words "--enable-scale-out" -}}
{{- /* Pause and weights are told to one server process; another would not know of it. */ -}}
{{- $words = append $words "--api-server-count=1" -}}
{{- else -}}
{{- $words = append $words "--headless" -}}
{{- end -}}
{{- /* The agent has handed everything back by now; what others run gets this long. */ -}}
{{- $words = append $words "--shutdown-timeout=10" -}}
{{- $words = append $words (printf "--tensor-parallel-size=%d" $tensor) -}}
{{- $words = append $words (printf "--data-parallel-size=%d" (mul $nodes $local)) -}}
{{- $words = append $words (printf "--data-parallel-size-local=%d" $local) -}}
{{- if gt $nodes 1 -}}
{{- /* The leader listens there, and not every build can listen at a name. */ -}}
{{- $leader := ternary "$(POD_IP)" "$(LWS_LEADER_ADDRESS)" .leads -}}
{{- $words = append $words (printf "--data-parallel-address=%s" $leader) -}}
{{- $words = append $words "--data-parallel-rpc-port=13345" -}}
{{- end -}}
{{- $words = append $words "--enable-expert-parallel" -}}
{{- $words = append $words (printf "--all2all-backend=%s" .path.vllm) -}}
{{- else -}}
{{- $ranks := mul $nodes $gpus -}}
{{- $words = list "python3" "-m" "sglang.launch_server" -}}
{{- $words = append $words (printf "--model-path=%s" .group.model) -}}
{{- $words = append $words (printf "--host=%s" $host) -}}
{{- $words = append $words (printf "--port=%d" (int $workers.port)) -}}
{{- $words = append $words "--enable-metrics" -}}
{{- /* Else every event repeats all tokens of its response. */ -}}
{{- $words = append $words "--incremental-streaming-output" -}}
{{- $words = append $words (printf "--tp-size=%d" $ranks) -}}
{{- $words = append $words (printf "--ep-size=%d" $ranks) -}}
{{- if gt (div $ranks $tensor) 1 -}}
{{- $words = append $words (printf "--dp-size=%d" (div $ranks $tensor)) -}}
{{- $words = append $words "--enable-dp-attention" -}}
{{- end -}}
{{- if gt $nodes 1 -}}
{{- $leader := ternary "$(POD_IP)" "$(LWS_LEADER_ADDRESS)" .leads -}}
{{- $words = append $words (printf "--dist-init-addr=%s:20000" $leader) -}}
{{- $words = append $words "--nnodes=$(LWS_GROUP_SIZE)" -}}
{{- $words = append $words "--node-rank=$(LWS_WORKER_INDEX)" -}}
{{- end -}}
{{- $words = concat $words .path.sglang -}}
{{- end -}}
{{- $words = concat $words (default list .group.args) -}}
{{- if .leads -}}
{{- $words = concat $words (default list .group.leaderArgs) -}}
{{- end -}}
{{- toYaml $words -}}
{{- end -}}

{{/* The group's own variables prevail over those that follow from its data path. */}}
{{- define "ebbtide.workerEnvironment" -}}
{{- $workers := .context.Values.workers -}}
{{- $given := default list .group.env -}}
{{- $plain := dict "NVIDIA_GDRCOPY" "enabled" -}}
{{- $_ := set $plain "NCCL_DEBUG" "INFO" -}}
{{- $_ := set $plain "NCCL_DEBUG_SUBSYS" "INIT,ENV,NET" -}}
{{- $_ := set $plain "NCCL_DEBUG_FILE" "/shared/nccl.%h.%p" -}}
{{- $_ := set $plain "NCCL_SET_THREAD_NAME" "1" -}}
{{- if .size.efa -}}
{{- $_ := set $plain "FI_PROVIDER" "efa" -}}
{{- with $workers.ncclNet -}}
{{- $_ := set $plain "NCCL_NET" . -}}
{{- end -}}
{{- end -}}
{{- range $name, $value := .path.env -}}
{{- $_ := set $plain $name $value -}}
{{- end -}}
{{- if eq .group.engine "vllm" -}}
{{- $_ := set $plain "VLLM_SERVER_DEV_MODE" "1" -}}
{{- end -}}
{{- range $given -}}
{{- $_ := unset $plain .name -}}
{{- end -}}
- name: NODE_IP
  valueFrom:
    fieldRef:
      fieldPath: status.hostIP
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: EBBTIDE_AGENT_PORT
  value: {{ .context.Values.agent.port | quote }}
{{- if eq .group.engine "vllm" }}
- name: VLLM_HOST_IP
  value: $(POD_IP)
{{- end }}
{{- range $name, $value := $plain }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- with $given }}
{{ toYaml . }}
{{- end }}
{{- end -}}
