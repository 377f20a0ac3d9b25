{{/* The agents' webhook: a URL, headers and a body, each from where its secrets may lie. */}}

{{/* Refuses settings that contradict each other, or that nothing would come of. */}}
{{- define "ebbtide.checkWebhook" -}}
{{- $hook := .Values.agent.webhook -}}
{{- $url := "agent.webhook.url" -}}
{{- $secret := "agent.webhook.existingSecret" -}}
{{- $headers := "agent.webhook.headersKey" -}}
{{- if and $hook.url $hook.existingSecret (not $hook.headersKey) -}}
{{- $advice := printf "leave url empty, or name the headers of the Secret in %s" $headers -}}
{{- fail (printf "%s and %s are both set: %s" $url $secret $advice) -}}
{{- else if and $hook.headersKey (not $hook.existingSecret) -}}
{{- fail (printf "%s is a key of a Secret: name the Secret in %s" $headers $secret) -}}
{{- else if and $hook.template (not $hook.url) (not $hook.existingSecret) -}}
{{- fail (printf "agent.webhook.template is set and nobody is called: set %s or %s" $url $secret) -}}
{{- else if contains "@" $hook.url -}}
{{- $advice := printf "leave it empty, and name a Secret that holds it in %s" $secret -}}
{{- fail (printf "%s carries a user or a password: %s" $url $advice) -}}
{{- end -}}
{{- end -}}

{{- define "ebbtide.webhookVolumes" -}}
{{- $hook := default dict .values.webhook -}}
{{- if $hook.template }}
- name: webhook
  configMap:
    name: {{ include "ebbtide.webhookMap" .context }}
{{- end }}
{{- if $hook.headersKey }}
- name: webhook-headers
  secret:
    secretName: {{ $hook.existingSecret }}
    items:
      - key: {{ $hook.headersKey }}
        path: headers
{{- end }}
{{- end -}}

{{- define "ebbtide.webhookMounts" -}}
{{- $hook := default dict .values.webhook -}}
{{- if $hook.template }}
- name: webhook
  mountPath: /etc/ebbtide-webhook
  readOnly: true
{{- end }}
{{- if $hook.headersKey }}
- name: webhook-headers
  mountPath: /etc/ebbtide-webhook-headers
  readOnly: true
{{- end }}
{{- end -}}

{{- define "ebbtide.webhookEnvironment" -}}
{{- $hook := default dict .values.webhook -}}
{{- if $hook.url }}
- name: EBBTIDE_WEBHOOK
  value: {{ $hook.url | quote }}
{{- else if $hook.existingSecret }}
- name: EBBTIDE_WEBHOOK
  valueFrom:
    secretKeyRef:
      name: {{ $hook.existingSecret }}
      key: {{ $hook.urlKey }}
{{- end }}
{{- if $hook.headersKey }}
- name: EBBTIDE_WEBHOOK_HEADERS
  value: /etc/ebbtide-webhook-headers/headers
{{- end }}
{{- if $hook.template }}
- name: EBBTIDE_WEBHOOK_TEMPLATE
  value: /etc/ebbtide-webhook/template
{{- end }}
{{- end -}}
