{{/*
What the templates share: names, labels, the checked policy, and what all pods have.

A part is what a kind of pod is made from: `context` (the root), `component` (its label), and the
`values` that are its own.
*/}}

{{- define "ebbtide.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that with every suffix it stays a valid label (63). */}}
{{- define "ebbtide.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "ebbtide.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "ebbtide.agent" -}}{{ include "ebbtide.fullname" . }}-agent{{- end -}}
{{- define "ebbtide.ownAgent" -}}{{ include "ebbtide.fullname" .context }}-{{ .kind }}-agent{{- end -}}
{{- define "ebbtide.controller" -}}{{ include "ebbtide.fullname" . }}-controller{{- end -}}
{{- define "ebbtide.webhookMap" -}}{{ include "ebbtide.fullname" . }}-webhook{{- end -}}
{{- define "ebbtide.configMap" -}}{{ include "ebbtide.fullname" . }}-policy{{- end -}}

{{/*
Name of an object that is not in the release's namespace. No namespace has a colon in its name, so
releases in different namespaces never share one.
*/}}
{{- define "ebbtide.clusterName" -}}
{{ .context.Release.Namespace }}:{{ .name }}
{{- end -}}

{{- define "ebbtide.selectorLabels" -}}
app.kubernetes.io/name: {{ include "ebbtide.name" .context }}
app.kubernetes.io/instance: {{ .context.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "ebbtide.labels" -}}
{{ include "ebbtide.selectorLabels" . }}
app.kubernetes.io/version: {{ .context.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .context.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .context.Chart.Name .context.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The policy as text, word for word where it was given as text. */}}
{{- define "ebbtide.policy" -}}
{{- $how := "--set-file policy=policies/grpo-async.yaml" -}}
{{- if not .Values.policy -}}
{{- fail (printf "policy is empty: give the fleet policy of the run, such as %s" $how) -}}
{{- end -}}
{{- $text := .Values.policy -}}
{{- if not (kindIs "string" $text) -}}
{{- $text = toYaml $text -}}
{{- end -}}
{{- $document := fromYaml $text -}}
{{- $metadata := ternary $document.metadata dict (kindIs "map" $document.metadata) -}}
{{- if not (and (eq (toString $document.kind) "FleetPolicy") $metadata.name) -}}
{{- $advice := "`ebbtide policy check` tells what is wrong with it" -}}
{{- $wanted := "policy must be a FleetPolicy document with a name" -}}
{{- fail (printf "%s, such as %s; %s" $wanted $how $advice) -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/* EBBTIDE_REDIS. A password never gets into a pod template or a message. */}}
{{- define "ebbtide.redis" -}}
{{- $redis := .Values.redis -}}
{{- $secret := "a Secret that holds the whole URL in redis.existingSecret" -}}
{{- if and $redis.url $redis.existingSecret -}}
{{- fail "redis.url and redis.existingSecret are both set: set one of them" -}}
{{- else if $redis.existingSecret -}}
- name: EBBTIDE_REDIS
  valueFrom:
    secretKeyRef:
      name: {{ $redis.existingSecret }}
      key: {{ $redis.key }}
{{- else if not $redis.url -}}
{{- fail (printf "redis.url is empty: set it, such as redis://redis:6379, or name %s" $secret) -}}
{{- else if contains "@" $redis.url -}}
{{- fail (printf "redis.url carries a user or a password: leave it empty and name %s" $secret) -}}
{{- else -}}
- name: EBBTIDE_REDIS
  value: {{ $redis.url | quote }}
{{- end -}}
{{- end -}}

{{- define "ebbtide.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "ebbtide.podMetadata" -}}
{{- $part := .values -}}
annotations:
  # A changed policy replaces the pods: agents read it at their start, and a policy that is not
  # valid then stops the upgrade at the first pod. Comments do not count.
  {{- $policy := include "ebbtide.policy" .context | fromYaml }}
  ebbtide.dev/policy-checksum: {{ toJson $policy | sha256sum }}
  {{- with ($part.webhook).template }}
  ebbtide.dev/webhook-checksum: {{ . | sha256sum }}
  {{- end }}
  {{- if .context.Values.metrics.scrapeAnnotations }}
  prometheus.io/scrape: "true"
  prometheus.io/port: {{ $part.port | quote }}
  prometheus.io/path: /metrics
  {{- end }}
  {{- with $part.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
# Not the chart's version: a new chart alone makes no agent hand its work back.
labels:
  {{- include "ebbtide.selectorLabels" . | nindent 2 }}
  # By this label agents know Ebbtide's own pods, which they never evict.
  ebbtide.dev/component: {{ .component }}
  {{- with $part.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Whether this part serves custom workers on a socket of the node. */}}
{{- define "ebbtide.hasSocket" -}}
{{- if (.values.socket).enabled }}true{{ end -}}
{{- end -}}

{{/* What the pods of all parts have in common, beside their containers. */}}
{{- define "ebbtide.podSpec" -}}
{{- $part := .values -}}
serviceAccountName: {{ .account }}
automountServiceAccountToken: true
securityContext:
  {{- if include "ebbtide.hasSocket" . }}
  # The owner of a folder that the node's kubelet makes. It has no capability beside that.
  runAsUser: 0
  {{- else }}
  runAsNonRoot: true
  runAsUser: 65532
  {{- end }}
  runAsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
volumes:
  - name: policy
    configMap:
      name: {{ include "ebbtide.configMap" .context }}
  {{- if include "ebbtide.hasSocket" . }}
  - name: socket
    hostPath:
      path: {{ $part.socket.folder }}
      type: DirectoryOrCreate
  {{- end }}
  {{- with include "ebbtide.webhookVolumes" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
{{- with .context.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $part.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $part.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What the containers of all parts have in common. */}}
{{- define "ebbtide.container" -}}
{{- $part := .values -}}
image: {{ include "ebbtide.image" .context | quote }}
imagePullPolicy: {{ .context.Values.image.pullPolicy }}
ports:
  - name: metrics
    containerPort: {{ $part.port }}
    protocol: TCP
volumeMounts:
  - name: policy
    mountPath: /etc/ebbtide
    readOnly: true
  {{- if include "ebbtide.hasSocket" . }}
  - name: socket
    mountPath: {{ $part.socket.folder }}
  {{- end }}
  {{- with include "ebbtide.webhookMounts" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
# The loop turns. The program needs neither Redis nor the API server for this answer.
livenessProbe:
  httpGet:
    path: /healthz
    port: metrics
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
# It can do its work.
readinessProbe:
  httpGet:
    path: /readyz
    port: metrics
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
resources:
  {{- toYaml $part.resources | nindent 2 }}
{{- end -}}

{{- define "ebbtide.environment" -}}
{{- $part := .values -}}
{{ include "ebbtide.redis" .context }}
- name: EBBTIDE_POLICY
  value: /etc/ebbtide/policy.yaml
- name: EBBTIDE_LISTEN
  value: {{ printf "%s:%d" .context.Values.listenAddress (int $part.port) | quote }}
- name: RUST_LOG
  value: {{ .context.Values.log.level | quote }}
{{- with .context.Values.aws.region }}
- name: AWS_REGION
  value: {{ . }}
{{- end }}
{{- with $part.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The run: metadata.name of the policy. */}}
{{- define "ebbtide.run" -}}
{{- (include "ebbtide.policy" . | fromYaml).metadata.name -}}
{{- end -}}

{{/* The leader lease, named as the controller names it: after the run, in the letters allowed. */}}
{{- define "ebbtide.lease" -}}
{{- printf "ebbtide-%s" (include "ebbtide.run" .) | lower | replace "_" "-" -}}
{{- end -}}
